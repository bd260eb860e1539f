//! Attempts at native writes: what has to be known for one is read first, and what stands in its way is told, or found out for
//! the next attempt.

use std::ffi::CStr;
use std::sync::Arc;

use nacre_object::{Done, ErrorKind, ObjectId, Outcome, StoreError, Transaction};
use parking_lot::Mutex;

use crate::cache::{CallUnderWay, ObjectCache};
use crate::error::{Attempt, errno, failed};
use crate::floor::Floor;
use crate::lane::{Ended, Entered};
use crate::native;
use crate::record::{Changed, Header};
use crate::store::Inner;
use crate::sys::ReadStep;
use crate::write::{NativeWrite, fails_by_key, guarded_key, key_refusal, plan, plan_first, unknown_keys};

/// The maximum number of native attempts at a transaction, before it is made by calls.
const ATTEMPTS_MAX: u32 = 4;

/// The result of one attempt at a native write.
enum Tried {
    /// It is done, or a guard does not hold.
    Done(Outcome),
    /// Somebody else changed the object before it.
    Changed,
    /// It is none, or not as far as is known.
    TakesCall,
    /// It failed, but has taken effect: librados sent it again, to an OSD that did not remember it.
    Made,
}

impl Inner {
    /// Applies a transaction as one native write, if it is one as far as is known, and the object is as it was known to
    /// be; or tells that a guard does not hold. Returns `None` if it takes a call.
    pub(crate) async fn write_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_natively(object, name, known, transaction).await? {
                Tried::Done(outcome) => return Ok(Some(outcome)),
                Tried::TakesCall => return Ok(None),
                Tried::Changed | Tried::Made => {}
            }
        }
        Ok(None)
    }

    /// Tries once to apply a transaction as one native write.
    async fn try_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Tried, StoreError> {
        let wants_fences = native::wants_fences(transaction, &known.lock());
        if wants_fences {
            self.learn_fences(object, name, known).await?;
        }
        let unknown = native::unknown(transaction, &known.lock());
        if let Some(native::Unknown { fork, ranges }) = unknown {
            self.learn_extents(object, name, known, fork, &ranges).await?;
        }
        let unknown = unknown_keys(transaction, &known.lock());
        if let Some(keys) = unknown {
            self.learn_keys(object, name, known, &keys).await?;
        }
        let planned = {
            // The lock is held until the write is passed on, so that what is foretold and what is sent keep the same order.
            let mut known = known.lock();
            plan(transaction, &known, self.token()).map(|write| self.pass_on(name, &mut known, write))
        };
        let Some(entered) = planned else {
            let fails = {
                let known = known.lock();
                native::fails_by_region(transaction, &known) || fails_by_key(transaction, &known)
            };
            return match fails {
                true => self.judge_anew(object, name, known, transaction, Tried::TakesCall, None).await,
                false => self.write_largely(object, name, known, transaction).await,
            };
        };
        let Ended { write, code } = self.ended(object, known, entered).await?;
        if code >= 0 {
            return Ok(self.written(object, name, known, write));
        }
        // An object that becomes too long may have garbage: a call compacts it.
        if -code == errno::EFBIG {
            return Ok(Tried::TakesCall);
        }
        if !matches!(-code, errno::ECANCELED | errno::ENOENT) {
            return Err(failed(code, Attempt::Write, &self.location, object));
        }
        // Somebody else wrote the object. If it was what the guards are about, what stands there now is wanted; if not, it is known
        // by then, and the write tried again.
        let judged = self.judge_anew(object, name, known, transaction, Tried::Changed, Some(&write)).await;
        match judged.map_err(|error| self.left_open(error))? {
            Tried::Made => Ok(self.written(object, name, known, write)),
            tried => Ok(tried),
        }
    }

    /// Takes what a native write leaves into the knowledge that it was planned by, and passes it on to be sent. Returns it with the
    /// generation of that knowledge.
    fn pass_on(&self, name: &CStr, known: &mut ObjectCache, write: NativeWrite) -> (Entered, u64) {
        write.foretell(known);
        (known.lane.enter(&self.pool, name, write), known.generation)
    }

    /// Waits until a native write is over. Where it failed, nothing holds any more that was known of the object.
    async fn ended(
        &self,
        object: &ObjectId,
        known: &Mutex<ObjectCache>,
        (entered, generation): (Entered, u64),
    ) -> Result<Ended, StoreError> {
        let Some(ended) = entered.ended().await else {
            let text = "its end was not noticed: the write may or may not have taken effect";
            return Err(self.context(StoreError::new(ErrorKind::Unknown, text), object));
        };
        if ended.code < 0 {
            let mut known = known.lock();
            if known.generation == generation {
                known.restart(None);
            }
        }
        Ok(ended)
    }

    /// Sends the native writes of an object that wait for others, before something else is sent that they should come before.
    pub(crate) fn hurry(&self, name: &CStr, known: &Mutex<ObjectCache>) {
        let lane = Arc::clone(&known.lock().lane);
        lane.hurry(&self.pool, name).look();
    }

    /// Returns whether a native write that failed, because the object was not as it was known to be, has taken effect all the same:
    /// librados sent it again, to an OSD that did not remember it. The header then has the write's own token, which nobody else
    /// uses. Where another change followed before it was sent again, the header no longer tells.
    async fn has_made(
        &self,
        object: &ObjectId,
        name: &CStr,
        write: &NativeWrite,
    ) -> Result<bool, StoreError> {
        let completed = self.pool.read(name, &[ReadStep::Xattrs], 0).await;
        match self.header(object, completed) {
            Ok((header, _)) => Ok(write.has_left(&header)),
            // This is none that the write leaves. A call says what is wrong with it.
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => Ok(false),
            Err(error) => Err(self.left_open(error)),
        }
    }

    /// Returns the failure of a write, from that of a read which was to tell whether the write was made all the same. That is unknown
    /// then, unless the pool is gone, and the write with it.
    fn left_open(&self, error: StoreError) -> StoreError {
        if self.pool.exists() { error.with_kind(ErrorKind::Unknown) } else { error }
    }

    /// Returns the outcome of a native write that has taken place, and announces it, and has the object compacted if that is due.
    fn written(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        write: NativeWrite,
    ) -> Tried {
        let NativeWrite { before, after, answers, .. } = write;
        let previous = before.map(|before| before.version);
        self.tidy(object, name, known, &Changed::from(&after), previous);
        Tried::Done(Outcome::Done(Done { version: after.version, existed: before.is_some(), answers }))
    }

    /// Tries to apply a write of many pieces, of which too little is known or kept, as a native write: reads all extents that it
    /// has to do with first. A call would go through them in the OSD, where others wait for it.
    async fn write_largely(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Tried, StoreError> {
        let is_open = {
            let known = known.lock();
            known.is_settled() && !known.is_missing() && !known.is_written()
        };
        let Some((fork, range, most)) = native::large_write(transaction).filter(|_| is_open) else {
            return Ok(Tried::TakesCall);
        };
        let Some(whole) = self.learn_whole(object, name, fork, range, most).await? else {
            return Ok(Tried::TakesCall);
        };
        let planned = {
            let mut known = known.lock();
            let planned = plan(transaction, &whole, self.token()).filter(|write| {
                // Where this client has written since, the write would fail.
                known.is_settled() && write.before.is_some_and(|before| known.saw_header(&before))
            });
            planned.map(|write| self.pass_on(name, &mut known, write))
        };
        let Some(entered) = planned else { return Ok(Tried::TakesCall) };
        let Ended { write, code } = self.ended(object, known, entered).await?;
        if code >= 0 {
            return Ok(self.written(object, name, known, write));
        }
        match -code {
            errno::EFBIG => Ok(Tried::TakesCall),
            errno::ECANCELED | errno::ENOENT => match self.has_made(object, name, &write).await? {
                true => Ok(self.written(object, name, known, write)),
                false => Ok(Tried::TakesCall),
            },
            _ => Err(failed(code, Attempt::Write, &self.location, object)),
        }
    }

    /// Reads what the guards of a transaction are about, if that is one region or one key, and judges them by that. Returns
    /// `otherwise` if they hold. With a write that has failed, it first looks whether that has taken effect all the same.
    async fn judge_anew(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
        otherwise: Tried,
        lost: Option<&NativeWrite>,
    ) -> Result<Tried, StoreError> {
        let refused = |refusal| Ok(Tried::Done(Outcome::Refused(refusal)));
        let is_made = |header: &Header| lost.is_some_and(|write| write.has_left(header));
        if let Some((fork, range)) = native::guarded_region(transaction) {
            let Some((found, header)) = self.read_range(object, name, known, fork, range, true).await? else {
                if let Some(write) = lost
                    && self.has_made(object, name, write).await?
                {
                    return Ok(Tried::Made);
                }
                return Ok(Tried::TakesCall);
            };
            if is_made(&header) {
                return Ok(Tried::Made);
            }
            return match native::refusal(transaction, (fork, range), &found, &header) {
                Some(refusal) => refused(refusal),
                None => Ok(otherwise),
            };
        }
        if let Some(key) = guarded_key(transaction) {
            let (header, found) = self.learn_keys(object, name, known, std::slice::from_ref(key)).await?;
            if is_made(&header) {
                return Ok(Tried::Made);
            }
            let found = found.into_iter().next().flatten();
            return match key_refusal(transaction, &header, found.as_ref()) {
                Some(refusal) => refused(refusal),
                None => Ok(otherwise),
            };
        }
        if let Some(write) = lost
            && self.has_made(object, name, write).await?
        {
            return Ok(Tried::Made);
        }
        // What it reads is read anew in any case.
        Ok(if transaction.reads.is_empty() { Tried::TakesCall } else { otherwise })
    }

    /// Makes an object of which there is no trace, if the transaction has a native form for that. Returns `None` if it takes a
    /// call, because it has none or there is something. The index of names must have a mark of it, which stands for the floor.
    pub(crate) async fn make_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
        floor: Floor,
    ) -> Result<Option<Changed>, StoreError> {
        let token = self.token();
        let write = plan_first(transaction, token, floor).filter(|_| self.location.native);
        let Some(write) = write else { return Ok(None) };
        // As for a call, nothing that this client does meanwhile builds on what it leaves.
        let under_way = CallUnderWay::begin(known);
        let code = write.send(&self.pool, name).await.code;
        under_way.end((code >= 0).then_some(token), Vec::new());
        if code >= 0 {
            write.made(&mut known.lock());
            return Ok(Some(Changed::from(&write.after)));
        }
        match -code {
            // There is something, perhaps what is left of a removed object, or what this write has made; or there would be too much
            // of it for an object, which a call tells.
            errno::EEXIST => {
                let is_made = self.has_made(object, name, &write).await?;
                Ok(is_made.then(|| Changed::from(&write.after)))
            }
            errno::EFBIG => Ok(None),
            errno::ENOENT => {
                self.pool_is_there(object)?;
                Ok(None)
            }
            _ => Err(failed(code, Attempt::Write, &self.location, object)),
        }
    }
}
