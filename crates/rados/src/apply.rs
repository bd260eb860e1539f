//! Transactions: chooses for each between RADOS' own operations and a call of `extent.lua`.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_object::limit::ATTRIBUTES_MAX;
use nacre_object::{Answer, Done, ErrorKind, Guard, ObjectId, Outcome, StoreError, Transaction, WriteOp};
use parking_lot::Mutex;

use crate::cache::{CallUnderWay, ObjectCache};
use crate::error::{Attempt, call_failed, errno, newer};
use crate::mark::Mark;
use crate::name::object_name;
use crate::record::{Changed, Token};
use crate::reply::corrupt;
use crate::store::{COMPACTION_BYTES_MIN, Inner, NEEDED_COMPACTION_BYTES_MIN};
use crate::sys::ReadStep;
use crate::watch::Link;
use crate::{native, reply, request, script, write};

/// The result of a call, when the OSD did not fail.
enum Called {
    /// A call that changed the object, with the answers that came along.
    Changed(Changed, Vec<Answer>),
    /// A call that changed nothing.
    Unchanged(reply::Reply),
    /// A call that changed nothing, whose output got lost: librados sent it again, and the OSD remembered that it failed.
    Lost,
    /// The OSD does not run calls, at least not for this user.
    Denied(StoreError),
    /// The object would hold more bytes than the OSD lets one have.
    TooLarge(StoreError),
}

impl Inner {
    /// Applies a transaction. What it says of an object without a trace is what the floor was from before the first look at the
    /// object until after the last one: no later floor, above which such an object might not begin, and no earlier one, below
    /// which the object may have been removed.
    pub(crate) async fn apply(
        &self,
        object: &ObjectId,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        let mut floor = self.marker.floor(object).shown;
        loop {
            let outcome = self.apply_once(object, transaction).await?;
            let version = match &outcome {
                Outcome::Done(done) if done.existed || !transaction.writes.is_empty() => return Ok(outcome),
                Outcome::Done(done) => done.version,
                Outcome::Refused(refusal) => refusal.version,
            };
            if version != floor && self.marker.floor(object).shown == floor {
                return Ok(outcome);
            }
            let now = self.marker.floor_now(object).await.map_err(|error| self.context(error, object))?;
            if now.shown == floor {
                return Ok(outcome);
            }
            // Nothing was changed so far.
            floor = now.shown;
        }
    }

    async fn apply_once(&self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let name = object_name(object);
        let known = self.knowledge.of(object);
        if transaction.writes.is_empty() {
            return self.read(object, &name, &known, transaction).await;
        }
        if self.location.native
            && let Some(outcome) = self.write_natively(object, &name, &known, transaction).await?
        {
            return Ok(outcome);
        }
        self.call(object, &name, &known, transaction).await
    }

    /// Answers a transaction that writes nothing.
    async fn read(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        // A read that is begun after a write of this client sees it, as where each is sent at once.
        self.hurry(name, known);
        if self.location.native {
            if let Some(read) = native::only_read(transaction)
                && let Some(outcome) = self.read_natively(object, name, known, read).await?
            {
                return Ok(outcome);
            }
            if let Some(outcome) = self.read_largely(object, name, known, transaction).await? {
                return Ok(outcome);
            }
        }
        self.ask(object, name, transaction).await
    }

    /// Answers reads of ranges natively, if everything but the bytes is known; or if they are so long that it pays off to
    /// read the index first, which is then known for those that follow. Returns `None` if it takes a call.
    async fn read_largely(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        if let Some(outcome) = self.read_known_ranges(object, name, known, transaction).await? {
            return Ok(Some(outcome));
        }
        match native::is_large_read(transaction) {
            true => self.read_one_state(object, name, transaction).await,
            false => Ok(None),
        }
    }

    /// Returns the knowledge of an object.
    pub(crate) fn known(&self, object: &ObjectId) -> Arc<Mutex<ObjectCache>> {
        self.knowledge.of(object)
    }

    /// Answers a transaction that writes nothing: by a call, which takes one operation whatever is asked, or, if that
    /// is impossible, by RADOS' own reads.
    async fn ask(
        &self,
        object: &ObjectId,
        name: &CStr,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        while !self.calls_denied.load(Ordering::Relaxed) {
            let floor = self.marker.floor(object);
            let call = request::Call { token: &Token::default(), expected: None, marked: false, floor };
            match self.evaluate(object, name, transaction, call, Attempt::Read).await? {
                Called::Unchanged(reply::Reply::Exhausted) => break,
                Called::Unchanged(reply) => return self.conclude(object, reply),
                Called::Denied(error) => {
                    tracing::debug!(%error, "reads do without calls from now on");
                    self.calls_denied.store(true, Ordering::Relaxed);
                }
                Called::TooLarge(error) => return Err(error),
                Called::Changed(..) | Called::Lost => {}
            }
        }
        self.read_piecewise(object, name, transaction).await
    }

    /// Applies a transaction that writes by calls.
    async fn call(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        if request::size_read(transaction, None).is_some() {
            match self.call_holding(object, name, known, transaction, None).await {
                // The answer would be too long. Whatever else is not supported, the calls below say the same of.
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                called => return called,
            }
        }
        // Of those that read and write one object, all but one would come too late and have to begin again, each time: so those
        // of this client take turns.
        let turn = (!transaction.reads.is_empty()).then(|| known.lock().turn());
        let _turn = match &turn {
            None => None,
            Some(turn) => {
                let mut held = Some(turn.lock().await);
                if self.location.native {
                    // Whoever had the turn before may have left what a native write can build on. Those need no turn, and go side by
                    // side.
                    let is_native = write::plan(transaction, &known.lock(), self.tokens.next()).is_some();
                    if is_native {
                        held = None;
                    }
                    if let Some(outcome) = self.write_natively(object, name, known, transaction).await? {
                        return Ok(outcome);
                    }
                }
                if held.is_none() {
                    held = Some(turn.lock().await);
                }
                held
            }
        };
        // Other answers do not fit into the reply of a call that writes. They are fetched first, and the write then counts
        // on the object's version being still the same; if it is not, it brings the fresh answers back.
        let mut held: Option<(u64, Vec<Answer>)> = None;
        if !transaction.reads.is_empty() {
            let (guards, reads) = (transaction.guards.clone(), transaction.reads.clone());
            let reading = Transaction { guards, reads, writes: Vec::new() };
            let (version, answers) = match self.read(object, name, known, &reading).await? {
                Outcome::Done(done) => (done.version, done.answers),
                refused => return Ok(refused),
            };
            // The guards held at this version: where it is still the object's, they hold. Proposals say more.
            let mut guards = transaction.guards.clone();
            guards.retain(|guard| matches!(guard, Guard::Proposal { .. }));
            guards.push(Guard::Version { version });
            let writing = Transaction { guards, reads: Vec::new(), writes: transaction.writes.clone() };
            if self.location.native
                && let Some(Outcome::Done(done)) = self.write_natively(object, name, known, &writing).await?
            {
                return Ok(Outcome::Done(Done { answers, ..done }));
            }
            held = Some((version, answers));
        }
        self.call_holding(object, name, known, transaction, held).await
    }

    /// Applies a transaction that writes by calls, with the answers to its reads and their version, unless those come along. Sets
    /// and settles the mark in the index of names, if it takes one.
    async fn call_holding(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
        held: Option<(u64, Vec<Answer>)>,
    ) -> Result<Outcome, StoreError> {
        // Whether a write makes the object is seldom known beforehand: the class tells.
        let mut mark = None;
        let tells =
            transaction.writes.contains(&WriteOp::Remove) || transaction.guards.contains(&Guard::Absent);
        if tells || known.lock().is_missing() {
            mark = Some(self.mark(object).await?);
        }
        let called = self.call_marked(object, name, known, transaction, held, &mut mark).await;
        match (&mark, &called) {
            (None, _) => {}
            (Some(mark), Ok((_, Some(changed)))) => {
                self.settle(mark, changed.version, changed.exists).await;
            }
            // It may take effect yet: what the mark says of it stays true.
            (Some(_), Err(error)) if error.kind == ErrorKind::Unknown => {}
            (Some(mark), _) => self.unmark(mark),
        }
        called.map(|(outcome, _)| outcome)
    }

    /// Applies a transaction that writes by calls, with the answers to its reads and their version. Sets the mark in the
    /// index of names if it takes one. Returns also what was changed.
    async fn call_marked(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        transaction: &Transaction,
        mut held: Option<(u64, Vec<Answer>)>,
        mark: &mut Option<Mark>,
    ) -> Result<(Outcome, Option<Changed>), StoreError> {
        let mut compacted = false;
        let mut tried = false;
        loop {
            if let Some(mark) = mark.as_ref()
                && !std::mem::replace(&mut tried, true)
                && let Some(changed) =
                    self.make_natively(object, name, known, transaction, mark.floor).await?
            {
                let Changed { version, existed, .. } = changed;
                let done = Done { version, existed, answers: Vec::new() };
                return Ok((Outcome::Done(done), Some(changed)));
            }
            let (token, expected) = (self.tokens.next(), held.as_ref().map(|(version, _)| *version));
            self.hurry(name, known);
            let under_way = CallUnderWay::begin(known);
            // With a mark, the floor is the one that the mark stands for, and may be no other.
            let floor = mark.as_ref().map_or_else(|| self.marker.floor(object), |mark| mark.floor);
            let call = request::Call { token: &token, expected, marked: mark.is_some(), floor };
            let called = self.evaluate(object, name, transaction, call, Attempt::Write).await;
            let changed = matches!(called, Ok(Called::Changed(..)));
            under_way.end(changed.then_some(token), write::bounds_found(transaction));
            match called? {
                Called::Unchanged(reply::Reply::Unindexed) if mark.is_none() => {
                    *mark = Some(self.mark(object).await?);
                }
                Called::Changed(changed, told) => {
                    self.tidy(object, name, known, &changed, request::previous(transaction, changed.version));
                    let answers = held.map_or(told, |(_, answers)| answers);
                    let Changed { version, existed, .. } = changed;
                    return Ok((Outcome::Done(Done { version, existed, answers }), Some(changed)));
                }
                Called::Unchanged(reply::Reply::Answered(answers, header)) => {
                    held = Some((header.version, answers))
                }
                Called::Unchanged(other) => return Ok((self.conclude(object, other)?, None)),
                Called::Lost => {}
                Called::Denied(error) => return Err(error),
                // Where garbage takes the room, the object is compacted and the write tried again, once. Where there is
                // none, the compaction changes nothing.
                Called::TooLarge(error) => {
                    if compacted {
                        return Err(error);
                    }
                    compacted = true;
                    if !self.make_room(name).await {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Announces a change, and starts the work that it made due. Nobody waits for it, and where it fails a later call asks again.
    pub(crate) fn tidy(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        changed: &Changed,
        previous: Option<u64>,
    ) {
        if changed.watched {
            self.watching.announce(object, Link::one(previous, changed.version));
        }
        if changed.unswept {
            drop(self.sweep(name));
        }
        if changed.wants_compaction() && known.lock().is_compaction_due(changed.tail) {
            drop(self.compact(name, COMPACTION_BYTES_MIN));
        }
    }

    /// Has the OSD compact an object that a change would make too long. Returns false if that gains nothing.
    pub(crate) async fn make_room(&self, name: &CStr) -> bool {
        // What nobody swept counts as live, and would be moved with the rest. Whoever left it may be gone.
        self.sweep_all(name).await;
        let completed = self.compact(name, NEEDED_COMPACTION_BYTES_MIN).await;
        let output = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
        completed.code >= 0 && output.is_some_and(|output| !output.is_empty())
    }

    /// Returns the outcome of a call that changed nothing.
    pub(crate) fn conclude(&self, object: &ObjectId, reply: reply::Reply) -> Result<Outcome, StoreError> {
        let error = match reply {
            reply::Reply::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
            reply::Reply::Answered(answers, header) => {
                return Ok(Outcome::Done(Done { version: header.version, existed: header.exists, answers }));
            }
            reply::Reply::Crowded(count) => {
                let text = format!("the object would have {count} attributes; the limit is {ATTRIBUTES_MAX}");
                StoreError::new(ErrorKind::Invalid, text)
            }
            reply::Reply::TooFar(size, len) => nacre_object::appended_too_far(size, len),
            reply::Reply::Corrupt(key) => corrupt(&key),
            reply::Reply::Failed(why) => {
                StoreError::new(ErrorKind::Io, format!("the class failed in the OSD: {why}"))
            }
            reply::Reply::Newer(format) => newer(format),
            reply::Reply::Unindexed => StoreError::new(ErrorKind::Io, "the OSD's answer is invalid"),
            reply::Reply::Exhausted => {
                let text = "the transaction touches more extents or values than one call may take in an OSD: make \
                            several smaller ones of it";
                StoreError::new(ErrorKind::Unsupported, text)
            }
        };
        Err(self.context(error, object))
    }

    /// Makes one call of a transaction. Its changes are stamped with the token.
    async fn evaluate(
        &self,
        object: &ObjectId,
        name: &CStr,
        transaction: &Transaction,
        call: request::Call<'_>,
        attempt: Attempt,
    ) -> Result<Called, StoreError> {
        let tells_size = request::size_read(transaction, call.expected).is_some();
        let request = request::encode(transaction, call);
        let chunk = self.chunk(name, request::routine(transaction, call.expected)).await;
        let completed = self.start_call(name, &script::call(&chunk, &request), attempt).await;
        let output =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        if completed.code < 0 && completed.code != -errno::ECANCELED {
            if completed.code == -errno::ENOENT {
                self.pool_is_there(object)?;
            }
            let error = call_failed(completed.code, attempt, &self.location, object);
            return match -completed.code {
                errno::EPERM | errno::EACCES | errno::EOPNOTSUPP => Ok(Called::Denied(error)),
                errno::EFBIG => Ok(Called::TooLarge(error)),
                _ => Err(error),
            };
        }
        if completed.code >= 0 && attempt == Attempt::Write {
            // Only a change that was made ends like this.
            return match reply::changed(&output, tells_size) {
                Some((changed, answers)) => Ok(Called::Changed(changed, answers)),
                None if tells_size => Err(self.context(reply::unread(), object)),
                None => {
                    let changed = self.own_change(object, name, call.token).await?;
                    Ok(Called::Changed(changed, Vec::new()))
                }
            };
        }
        if output.is_empty() {
            return Ok(Called::Lost);
        }
        if output[..] == [script::FOREIGN_CHUNK] {
            // The OSDs do not all run the same Lua: each compiles for itself from now on.
            self.chunks.write().clear();
            self.by_text.store(true, Ordering::Relaxed);
            return Ok(Called::Lost);
        }
        match reply::decode(transaction, output, call.floor.shown) {
            Some(reply) => reply.map(Called::Unchanged).map_err(|error| self.context(error, object)),
            None => Err(self.context(StoreError::new(ErrorKind::Io, "the OSD's answer is invalid"), object)),
        }
    }

    /// Returns the result of a change that the OSD made and did not answer: the object's header tells it, unless
    /// another change followed.
    pub(crate) async fn own_change(
        &self,
        object: &ObjectId,
        name: &CStr,
        token: &Token,
    ) -> Result<Changed, StoreError> {
        let completed = self.pool.read(name, &[ReadStep::Xattrs], 0).await;
        let found = self.header(object, completed).map(|(header, _)| header);
        reply::unsaid(token, found).map_err(|error| self.context(error, object))
    }
}
