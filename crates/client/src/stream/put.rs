//! Replacing a stream as a whole: a new content is written beside the present one, and takes its place by one transaction.

use std::time::Duration;

use bytes::BytesMut;
use futures::{TryStreamExt, stream};
use nacre_object::stripe::record::{Content, RECORD, Record, State, now};
use nacre_object::{
    Answer, Check, ErrorKind, Fork, Guard, Key, Outcome, ReadOp, StoreError, Transaction, WriteOp,
};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::write::Sent;
use super::{ATTEMPTS_MAX, Layout, REQUESTS_MAX, Stream, end_of, nonsense, too_busy};
use crate::transfer::{RetryBudget, source_error};

/// The time without progress after which the writer of a content is taken to be dead.
const STALE_AFTER: Duration = nacre_object::stage::STALE_AFTER;
/// The interval at which a writer that makes progress writes that down.
const REFRESH_AFTER: Duration = nacre_object::stage::REFRESH_AFTER;

impl Stream {
    /// Replaces the stream, or the object of that name, with everything that `source` gives, at once: others see the old
    /// content or the new one, and a failure before the end leaves the old one. Makes the stream if there is none.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Where the store or the source fails, the content is the old one; only [`ErrorKind::Unknown`] leaves open which of
    /// the two it is. [`ErrorKind::Busy`] if what was written so far was taken away: by a removal of the stream, or because
    /// it had not got on for a day.
    pub async fn put(&self, source: impl AsyncRead + Unpin) -> Result<u64, StoreError> {
        let put = async {
            let layout = self.default_layout().await?;
            let begun = self.begin_put(layout).await?;
            let put = match self.fill(begun, source).await {
                Ok(content) => match self.patiently(|| self.load()).await {
                    // What ends the put is not repeated, so it is sent to a server that answers.
                    Ok(_) => self.commit(content).await.map(|()| content.size),
                    Err(error) => Err(error),
                },
                Err(error) => Err(without_effect(error)),
            };
            match put {
                Ok(bytes) => Ok(bytes),
                Err(error) => {
                    // What cannot be removed now is removed by a later put, or with the stream.
                    if error.kind != ErrorKind::Unknown {
                        drop(self.abandon(begun.number).await);
                    }
                    Err(error)
                }
            }
        };
        put.await.map_err(|error| self.context(error, "store all of"))
    }

    /// Makes an attempt again, as often as is needed, while the server is away. It must be one that may take effect twice.
    async fn patiently<T, Attempt>(&self, mut attempt: impl FnMut() -> Attempt) -> Result<T, StoreError>
    where
        Attempt: Future<Output = Result<T, StoreError>>,
    {
        let mut patience = RetryBudget::new(&self.store);
        loop {
            match attempt().await {
                Err(error) if patience.allows(&without_effect(error.clone())).await => {}
                result => return result,
            }
        }
    }

    /// Adds a content that is being put to the record, and makes the record if there is none.
    async fn begin_put(&self, layout: Layout) -> Result<Content, StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let (mut record, before) = match self.load().await? {
                Some((record, text)) => (record, Some(text)),
                None => (Record { created: false, layout, contents: Vec::new() }, None),
            };
            // Writers that died are not waited for.
            let stale = now().saturating_sub(STALE_AFTER.as_secs());
            for content in &mut record.contents {
                if content.state == State::Pending && content.alive_at < stale {
                    content.state = State::Dead;
                }
            }
            let dead = record.contents.iter().any(|content| content.state == State::Dead);
            if dead && attempt == 0 {
                if before.is_some() && self.replace_record(before.as_ref(), &record, Vec::new()).await? {
                    self.remove_dead().await?;
                }
                continue;
            }
            let content = record.begin(&self.head, State::Pending)?;
            match self.replace_record(before.as_ref(), &record, Vec::new()).await {
                Ok(true) => return Ok(content),
                Ok(false) => {}
                Err(error) => {
                    // It may have begun all the same.
                    if error.kind.is_uncertain() {
                        drop(self.abandon(content.number).await);
                    }
                    return Err(without_effect(error));
                }
            }
        }
        Err(too_busy())
    }

    /// Writes the bytes of a content that is being put, and returns it with its size.
    async fn fill(
        &self,
        mut content: Content,
        mut source: impl AsyncRead + Unpin,
    ) -> Result<Content, StoreError> {
        let unit = u64::from(content.layout.unit_bytes);
        let mut refreshed = std::time::Instant::now();
        let mut under_way = stream::FuturesUnordered::new();
        let this = self;
        loop {
            let mut data = BytesMut::with_capacity(unit as usize);
            while (data.len() as u64) < unit {
                let room = unit - data.len() as u64;
                if (&mut source).take(room).read_buf(&mut data).await.map_err(source_error)? == 0 {
                    break;
                }
            }
            let (offset, data) = (content.size, data.freeze());
            let last = (data.len() as u64) < unit;
            content.size = end_of(offset, data.len() as u64)?;
            let wanted = content.layout.objects(content.size);
            if wanted > content.objects || refreshed.elapsed() >= REFRESH_AFTER {
                // The record is changed seldom: it runs ahead of what is written.
                if wanted > content.objects {
                    content.objects = wanted.max(2 * content.objects);
                }
                let (number, objects) = (content.number, content.objects);
                let refresh = move |record: &mut Record| {
                    let kept = record.content_mut(number).ok_or_else(taken_away)?;
                    (kept.objects, kept.alive_at) = (objects, now());
                    Ok(())
                };
                self.patiently(|| self.update(refresh)).await?;
                refreshed = std::time::Instant::now();
            }
            if !data.is_empty() {
                under_way.push(async move {
                    // Nobody reads these bytes before the end: to write them twice does no harm.
                    let mut again = false;
                    this.patiently(|| {
                        let again = std::mem::replace(&mut again, true);
                        this.write_content(&content, offset, &data, again)
                    })
                    .await
                });
            }
            while under_way.len() >= REQUESTS_MAX || last && !under_way.is_empty() {
                if let Some(Sent::Stale) = under_way.try_next().await? {
                    return Err(taken_away());
                }
            }
            if last {
                break;
            }
        }
        drop(under_way);
        Ok(content)
    }

    /// Makes a content the present one, and removes the one that it replaces.
    async fn commit(&self, content: Content) -> Result<(), StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let loaded = self.load().await.map_err(|error| match attempt {
                0 => error,
                // An attempt that was refused may have taken effect all the same.
                _ => error.with_kind(ErrorKind::Unknown),
            });
            let gone = || match attempt {
                0 => taken_away(),
                _ => replaced(),
            };
            let (mut record, text) = loaded?.ok_or_else(gone)?;
            match record.content_mut(content.number).map(|kept| kept.state) {
                None => return Err(gone()),
                // An attempt took effect though its outcome was lost.
                Some(State::Present) => {
                    drop(self.remove_dead().await);
                    return Ok(());
                }
                Some(_) => {}
            }
            record.bury_present();
            (record.created, record.layout) = (true, content.layout);
            if let Some(kept) = record.content_mut(content.number) {
                let dense = content.layout.objects(content.size);
                let objects = kept.objects.max(dense);
                *kept = Content { state: State::Present, objects, reached: content.size, dense, ..content };
            }
            // What the object of that name held is replaced with it.
            let whole = WriteOp::RemoveFork { fork: Fork::DEFAULT };
            if self.replace_record(Some(&text), &record, vec![whole]).await? {
                drop(self.remove_dead().await);
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Takes away a content that was being put; and the head, if nothing but that content made it.
    async fn abandon(&self, number: u128) -> Result<(), StoreError> {
        self.update(|record| {
            // One that became the present content is the stream's, and no put takes it away.
            if let Some(content) = record.content_mut(number)
                && content.state == State::Pending
            {
                content.state = State::Dead;
            }
            Ok(())
        })
        .await?;
        self.remove_dead().await?;
        let Some((record, text)) = self.load().await? else { return Ok(()) };
        if record.created || !record.contents.is_empty() {
            return Ok(());
        }
        let name = Key::try_from(RECORD)?;
        let guarded =
            Transaction::new().guard(Guard::Attribute { name: name.clone(), check: Check::Equal(text) });
        // An object that was there before keeps what it had; one of which nothing else is known goes.
        let look = guarded.clone().read(ReadOp::Stat);
        let Outcome::Done(done) = self.store.apply(&self.head, look).await? else { return Ok(()) };
        let Some(Answer::Stat(stat)) = done.answers.first() else { return Err(nonsense()) };
        let alone = (stat.forks, stat.keys, stat.attributes) == (0, 0, 1);
        let change = if alone { WriteOp::Remove } else { WriteOp::RemoveAttribute { name } };
        let undo = guarded.guard(Guard::Version { version: done.version }).change(change);
        self.store.apply(&self.head, undo).await.map(drop)
    }
}

/// Returns the failure of a put before its content was to become the present one. Whether the request that failed took effect
/// makes no difference to the stream: its content is the old one.
fn without_effect(error: StoreError) -> StoreError {
    match error.kind {
        ErrorKind::Unknown => error.with_kind(ErrorKind::Unavailable),
        _ => error,
    }
}

fn taken_away() -> StoreError {
    let text = "what was written so far was discarded, because the stream was removed or the write made no \
                progress for a day; the content is unchanged";
    StoreError::new(ErrorKind::Busy, text)
}

/// Returns the failure of a put whose content is gone after an attempt to make it the present one was refused, though that may
/// have taken effect.
fn replaced() -> StoreError {
    let text = "others changed the stream at the same time: the new content was removed or replaced, or never took effect";
    StoreError::new(ErrorKind::Unknown, text)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::executor::block_on;

    use super::*;
    use crate::stream::OBJECTS_ASKED_MAX;

    #[test]
    fn an_object_that_an_earlier_attempt_made_for_a_removed_content_is_removed() {
        block_on(async {
            let store = crate::open("mem:").unwrap();
            let stream = store.stream("big").unwrap();
            let layout = Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 };
            let content = stream.begin_put(layout).await.unwrap();
            // Whoever removes the content does not know of this object.
            let (offset, data) = (OBJECTS_ASKED_MAX * 4096, Bytes::from_static(b"late"));
            let sent = stream.write_content(&content, offset, &data, false).await.unwrap();
            assert!(matches!(sent, Sent::Done));
            stream.abandon(content.number).await.unwrap();
            assert!(store.list().next().await.unwrap().is_some());
            // The answer to the first attempt was lost.
            let sent = stream.write_content(&content, offset, &data, true).await.unwrap();
            assert!(matches!(sent, Sent::Stale));
            assert_eq!(store.list().next().await.unwrap(), None);
        });
    }
}
