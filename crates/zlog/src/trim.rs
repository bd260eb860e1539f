//! Filling positions that nobody has written, and trimming what nobody needs any more.

use bytes::Bytes;
use futures::future::join_all;
use nacre_object::{Answer, Check, Guard, Outcome, ReadOp, Transaction, WriteOp};

use crate::directory::begin_key;
use crate::entry::Index;
use crate::error::LogError;
use crate::layout::{self, View};
use crate::limit::BATCH_ENTRIES_MAX;
use crate::log::Inner;
use crate::stripe::{Stripe, StripeError, Written};

impl Inner {
    /// Fills those of the positions from `from` to before `to` to which nothing was written.
    pub async fn fill(&self, from: u64, to: u64) -> Result<(), LogError> {
        self.may_write()?;
        let mut patience = self.patience();
        let mut from = from;
        'views: while from < to {
            let known = self.known();
            let Some((view, end)) = known.views.find(from) else {
                from = known.views.start();
                continue;
            };
            let upto = to.min(end).min(from.saturating_add(BATCH_ENTRIES_MAX as u64));
            for part in view.parts(from, upto) {
                let object = self.object(view, part.object)?;
                let filled = fill_part(self.stripe(&object, view), part.place, part.count).await;
                match filled {
                    Ok(()) => {}
                    Err(error) => {
                        self.again(&known, error, &mut patience).await?;
                        continue 'views;
                    }
                }
            }
            from = upto;
        }
        Ok(())
    }

    pub async fn begin(&self) -> Result<u64, LogError> {
        let head = layout::head(self.id)?;
        let read = Transaction::new().read(ReadOp::Key { key: begin_key() });
        let Outcome::Done(done) = self.apply(&head, read).await? else { return Err(self.nonsense()) };
        match &done.answers[..] {
            [Answer::Value(None)] => Ok(0),
            [Answer::Value(Some(value))] => {
                Ok(u64::from_be_bytes(value[..].try_into().map_err(|_| self.nonsense())?))
            }
            _ => Err(self.nonsense()),
        }
    }

    pub async fn trim(&self, position: u64) -> Result<(), LogError> {
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let Some((view, _)) = known.views.find(position) else { return Ok(()) };
            let (index, place) = view.locate(position);
            let object = self.object(view, index)?;
            match self.stripe(&object, view).trim(place).await {
                Ok(()) => return Ok(()),
                Err(error) => self.again(&known, error, &mut patience).await?,
            }
        }
    }

    pub async fn trim_prefix(&self, before: u64) -> Result<(), LogError> {
        // First it is written down, so that readers need not look at what is being removed.
        let head = layout::head(self.id)?;
        loop {
            let begin = self.begin().await?;
            if begin >= before {
                break;
            }
            let check = match begin {
                0 => Check::Absent,
                begin => Check::Equal(Bytes::copy_from_slice(&begin.to_be_bytes())),
            };
            let guard = Guard::Key { key: begin_key(), check };
            let value = Bytes::copy_from_slice(&before.to_be_bytes());
            let write = WriteOp::SetKey { key: begin_key(), value };
            let transaction = Transaction::new().guard(Guard::Exists).guard(guard).change(write);
            match self.apply(&head, transaction).await? {
                Outcome::Done(_) => break,
                Outcome::Refused(refusal) if refusal.guard == 0 => {
                    return Err(LogError::Missing(self.name.clone()));
                }
                Outcome::Refused(_) => {}
            }
        }
        let mut patience = self.patience();
        loop {
            let known = self.known();
            let (mut refused, mut again) = (None, false);
            let views = &known.views.views;
            for (number, view) in views.iter().enumerate().filter(|(_, view)| view.start < before) {
                let end = views.get(number + 1).map_or(u64::MAX, |next| next.start);
                if end <= before {
                    // It goes as a whole.
                    continue;
                }
                let trims = (0..view.width).map(|index| async move {
                    let object = layout::object(self.id, view, index)?;
                    let places = view.places_before(index, before);
                    self.stripe(&object, view).trim_prefix(places).await
                });
                for trimmed in join_all(trims).await {
                    match trimmed {
                        Ok(()) => {}
                        Err(StripeError::Epoch(found)) => refused = Some(found),
                        Err(StripeError::Store(error)) => {
                            patience.wait(error).await?;
                            again = true;
                        }
                    }
                }
            }
            if let Some(found) = refused {
                self.refresh(&known, found).await?;
                again = true;
            }
            if again {
                continue;
            }
            let kept: Vec<View> = (views.iter().enumerate())
                .filter(|(number, _)| views.get(number + 1).is_none_or(|next| next.start > before))
                .map(|(_, view)| view.clone())
                .collect();
            let gone: Vec<View> = views.iter().filter(|view| !kept.contains(view)).cloned().collect();
            if gone.is_empty() {
                return Ok(());
            }
            let mut next = known.views.clone();
            next.views = kept;
            let Some(_) = self.publish(&known, next).await? else {
                self.refresh(&known, None).await?;
                continue;
            };
            // Readers that do not know it yet find the objects gone, and look at the map.
            for view in gone {
                self.remove_objects(&view).await;
            }
            return Ok(());
        }
    }
}

/// Fills the free ones of consecutive places.
async fn fill_part(stripe: Stripe<'_>, place: u64, count: u64) -> Result<(), StripeError> {
    let mut place = place;
    let end = place + count;
    while place < end {
        let indices = stripe.read(place, end - place, 0).await?.entries;
        let free = indices.iter().position(|index| *index == Index::Nothing);
        let Some(free) = free else {
            place += indices.len() as u64;
            continue;
        };
        let run = indices[free..].iter().take_while(|index| **index == Index::Nothing).count();
        // If somebody was faster, the index is looked at again.
        place += free as u64;
        if stripe.fill(place, run as u64).await? == Written::Done {
            place += run as u64;
        }
    }
    Ok(())
}
