//! Programs: Lua that runs in the OSDs around `extent.lua`, for more than transactions can say.
//!
//! A program reads the object by the functions of that script, and makes its changes by `conclude`, so that it leaves the
//! same records, versions and marks as any transaction. It runs in one operation, which changes everything or nothing. What
//! bounds it is its own matter: an OSD ends no script.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nacre_object::{ErrorKind, ObjectId, StoreError, Transaction};
use parking_lot::{Mutex, RwLock};

use crate::cache::{CallUnderWay, ObjectCache};
use crate::error::{Attempt, call_failed, errno};
use crate::mark::Mark;
use crate::name::object_name;
use crate::record::Changed;
use crate::store::Inner;
use crate::{reply, request, script};

/// The least status of an answer that is the program's own. Changes begin with flags, which are lower.
const OWN_STATUS_MIN: u8 = 32;
/// The status of a call that would have made the object, or removed it, without a mark in the index of names.
const UNINDEXED: u8 = 9;

/// A Lua program for OSDs, with its compiled form once an OSD has made it.
#[derive(derive_more::Debug)]
#[debug("Program")]
pub struct Program {
    source: Bytes,
    compiled: RwLock<Option<Bytes>>,
}

impl Program {
    /// Creates a program of two texts. The first stands before everything else, and sees nothing of it. The second sees all
    /// local names of `extent.lua`, and defines the local function `method`, which first calls `begin()`: that says whether the
    /// index has a mark, and whether the call took effect before, so that `changed()` is to be returned. Then comes the
    /// request. It returns an answer of which the first byte is 32 to 127, and changes nothing; or what `conclude` returned, and up
    /// to 15 bytes behind that.
    pub fn new(before: &[u8], body: &str) -> Self {
        Self { source: script::program(before, body).into(), compiled: RwLock::new(None) }
    }
}

/// The outcome of a program that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRun {
    /// The object's version, if the program changed it.
    pub version: Option<u64>,
    /// The answer; `None` if the program changed the object and its answer got lost.
    pub output: Option<Bytes>,
}

/// Returns an answer without the bit of its status that tells that there is no trace of the object.
fn traced(answer: &Bytes) -> Bytes {
    let mut answer = answer.to_vec();
    answer[0] &= !script::UNTRACED;
    answer.into()
}

impl Inner {
    /// Runs a program on an object.
    pub(crate) async fn run(
        &self,
        object: &ObjectId,
        program: &Program,
        request: &[u8],
    ) -> Result<ProgramRun, StoreError> {
        let (name, known) = (object_name(object), self.known(object));
        let mut mark = None;
        let ran = self.run_marked(object, &name, &known, program, request, &mut mark).await;
        match (&mark, &ran) {
            (None, _) => {}
            (Some(mark), Ok((_, Some(changed)))) => {
                self.settle(mark, changed.version, changed.exists).await;
            }
            // It may take effect yet: what the mark says of it stays true.
            (Some(_), Err(error)) if error.kind == ErrorKind::Unknown => {}
            (Some(mark), _) => self.unmark(mark),
        }
        ran.map(|(ran, _)| ran)
    }

    /// Runs a program. What it answers of an object without a trace, and changes nothing, is what the floor was from before it ran until
    /// after it, as of a transaction ([`Inner::apply`]): the versions that it sees never go back behind those that others were shown.
    async fn run_marked(
        &self,
        object: &ObjectId,
        name: &CStr,
        known: &Mutex<ObjectCache>,
        program: &Program,
        request: &[u8],
        mark: &mut Option<Mark>,
    ) -> Result<(ProgramRun, Option<Changed>), StoreError> {
        let mut compacted = false;
        loop {
            let token = self.token();
            let floor = mark.as_ref().map_or_else(|| self.marker.floor(object), |mark| mark.floor);
            let input = [&request::beginning(&token, mark.is_some(), floor)[..], request].concat();
            let chunk = self.program_chunk(name, program).await;
            self.hurry(name, known);
            let under_way = CallUnderWay::begin(known);
            let completed = self.start_call(name, &script::call(&chunk, &input), Attempt::Write).await;
            let output =
                completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
            let is_own = output.first().is_some_and(|status| *status >= OWN_STATUS_MIN);
            under_way.end((completed.code >= 0 && !is_own).then_some(token), Vec::new());
            if completed.code >= 0 && is_own {
                let is_untraced = output[0] & script::UNTRACED != 0;
                if is_untraced && self.has_risen(object, floor.shown).await? {
                    // The mark stands for the floor from before, too.
                    if let Some(mark) = mark.take() {
                        self.unmark(&mark);
                    }
                    continue;
                }
                let output = if is_untraced { traced(&output) } else { output };
                return Ok((ProgramRun { version: None, output: Some(output) }, None));
            }
            if completed.code >= 0 {
                // Only a change that was made ends like this.
                let (changed, output) = match Changed::decode_before(&output) {
                    Some((changed, rest)) => (changed, Some(rest)),
                    None => (self.own_change(object, name, &token).await?, None),
                };
                // The script takes the version that follows.
                let previous = changed.version.checked_sub(1);
                self.tidy(object, name, known, &changed, previous);
                return Ok((ProgramRun { version: Some(changed.version), output }, Some(changed)));
            }
            if completed.code != -errno::ECANCELED {
                if completed.code == -errno::ENOENT {
                    self.pool_is_there(object)?;
                }
                if completed.code == -errno::EFBIG && !compacted {
                    compacted = true;
                    if self.make_room(name).await {
                        continue;
                    }
                }
                return Err(call_failed(completed.code, Attempt::Write, &self.location, object));
            }
            match output.first().copied() {
                // librados sent it again, and the OSD remembered no more than that it failed.
                None => {}
                Some(script::FOREIGN_CHUNK) if output.len() == 1 && chunk == program.source => {
                    let text = "the OSD's Lua does not compile the program";
                    return Err(self.context(StoreError::new(ErrorKind::Unsupported, text), object));
                }
                Some(script::FOREIGN_CHUNK) if output.len() == 1 => {
                    self.by_text.store(true, Ordering::Relaxed);
                    *program.compiled.write() = None;
                }
                Some(UNINDEXED) if mark.is_none() => *mark = Some(self.mark(object).await?),
                Some(_) => {
                    if let Some(reply) = reply::decode(&Transaction::new(), output, floor.shown) {
                        drop(self.conclude(object, reply?)?);
                    }
                    let error = StoreError::new(ErrorKind::Io, "the OSD's answer is invalid");
                    return Err(self.context(error, object));
                }
            }
        }
    }

    /// Returns whether objects without a trace show another version than a floor's by now, which is then known.
    async fn has_risen(&self, object: &ObjectId, shown: u64) -> Result<bool, StoreError> {
        let now = self.marker.floor_now(object).await.map_err(|error| self.context(error, object))?;
        Ok(now.shown != shown)
    }

    /// Returns the chunk of a program: compiled, as soon as an OSD has done that once.
    async fn program_chunk(&self, name: &CStr, program: &Program) -> Bytes {
        if self.by_text.load(Ordering::Relaxed) {
            return program.source.clone();
        }
        if let Some(chunk) = program.compiled.read().clone() {
            return chunk;
        }
        let compilation = script::compilation(&program.source);
        let completed = self.start_call(name, &compilation, Attempt::Read).await;
        let chunk =
            completed.answers.into_iter().next().map(|answer| answer.into_bytes()).unwrap_or_default();
        if completed.code < 0 || chunk.is_empty() {
            // Whatever is wrong, the call itself will say it better.
            return program.source.clone();
        }
        *program.compiled.write() = Some(chunk.clone());
        chunk
    }
}
