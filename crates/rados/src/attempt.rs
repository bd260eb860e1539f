//! Attempts at native writes: what has to be known for one is read first, and what stands in its way is told, or found out for
//! the next attempt.

use std::ffi::CStr;

use nacre_object::{Done, ObjectId, Outcome, StoreError, Transaction};
use parking_lot::Mutex;

use crate::cache::{CallUnderWay, ObjectCache, WriteUnderWay};
use crate::error::{Attempt, errno, failed};
use crate::native;
use crate::record::Changed;
use crate::store::Inner;
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
                Tried::Changed => {}
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
            // The lock is held until the operation is sent, so that what is foretold and what is sent keep the same
            // order.
            let mut known = known.lock();
            plan(transaction, &known, self.token()).map(|write| {
                let operation = write.send(&self.pool, name);
                write.foretell(&mut known);
                (write, operation, known.generation)
            })
        };
        let Some((write, operation, generation)) = planned else {
            let fails = {
                let known = known.lock();
                native::fails_by_region(transaction, &known) || fails_by_key(transaction, &known)
            };
            return match fails {
                true => self.judge_anew(object, name, known, transaction, Tried::TakesCall).await,
                false => self.write_largely(object, name, known, transaction).await,
            };
        };
        let under_way = WriteUnderWay::begin(known);
        let code = operation.await.code;
        drop(under_way);
        if code >= 0 {
            return Ok(self.written(object, name, known, write));
        }
        {
            let mut known = known.lock();
            if known.generation == generation {
                known.restart(None);
            }
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
        self.judge_anew(object, name, known, transaction, Tried::Changed).await
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
            planned.map(|write| {
                let operation = write.send(&self.pool, name);
                write.foretell(&mut known);
                (write, operation, known.generation)
            })
        };
        let Some((write, operation, generation)) = planned else { return Ok(Tried::TakesCall) };
        let under_way = WriteUnderWay::begin(known);
        let code = operation.await.code;
        drop(under_way);
        if code >= 0 {
            return Ok(self.written(object, name, known, write));
        }
        let mut known = known.lock();
        if known.generation == generation {
            known.restart(None);
        }
        drop(known);
        match -code {
            errno::ECANCELED | errno::ENOENT | errno::EFBIG => Ok(Tried::TakesCall),
            _ => Err(failed(code, Attempt::Write, &self.location, object)),
        }
    }

    /// Reads what the guards of a transaction are about, if that is one region or one key, and judges them by that. Returns
    /// `otherwise` if they hold.
    async fn judge_anew(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
        otherwise: Tried,
    ) -> Result<Tried, StoreError> {
        let refused = |refusal| Ok(Tried::Done(Outcome::Refused(refusal)));
        if let Some((fork, range)) = native::guarded_region(transaction) {
            let Some((found, header)) = self.read_range(object, name, known, fork, range, true).await? else {
                return Ok(Tried::TakesCall);
            };
            return match native::refusal(transaction, (fork, range), &found, &header) {
                Some(refusal) => refused(refusal),
                None => Ok(otherwise),
            };
        }
        if let Some(key) = guarded_key(transaction) {
            let (header, found) = self.learn_keys(object, name, known, std::slice::from_ref(key)).await?;
            let found = found.into_iter().next().flatten();
            return match key_refusal(transaction, &header, found.as_ref()) {
                Some(refusal) => refused(refusal),
                None => Ok(otherwise),
            };
        }
        // What it reads is read anew in any case.
        Ok(if transaction.reads.is_empty() { Tried::TakesCall } else { otherwise })
    }

    /// Makes an object of which there is no trace, if the transaction has a native form for that. Returns `None` if it takes a
    /// call, because it has none or there is something. The index of names must have a mark of it.
    pub(crate) async fn make_natively(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Option<Changed>, StoreError> {
        let token = self.token();
        let write = plan_first(transaction, token).filter(|_| self.location.native);
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
            // There is something, perhaps what is left of a removed object; or too much of it for an object, which a call tells.
            errno::EEXIST | errno::EFBIG => Ok(None),
            errno::ENOENT => {
                self.pool_is_there(object)?;
                Ok(None)
            }
            _ => Err(failed(code, Attempt::Write, &self.location, object)),
        }
    }
}
