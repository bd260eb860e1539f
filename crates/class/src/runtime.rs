//! Calls of methods on objects of any store.
//!
//! A call reads the object at one version, runs without holding anything up, and applies what the method wants changed on
//! condition that the object is still at that version. If it is not, the call starts again from the new state. Where calls
//! of one object fail each other so, they take turns.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use nacre_object::{
    Answer, ByteRange, Done, Found, Guard, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
};
use parking_lot::Mutex;

use crate::bounds::{Bound, Bounds};
use crate::call::{Call, View};
use crate::catalogue::{Catalogue, Class};
use crate::errno;
use crate::error::{CallError, Failure};
use crate::machines::Machines;
use crate::vm::{Ended, Fatal};

/// The number of attempts after which a call is given up.
const ATTEMPTS_MAX: u32 = 1000;
/// The number of conflicts after which a call waits for its turn.
const CONFLICTS_MIN: u32 = 2;
/// The number of turns of which each object has one, by its hash.
const TURNS: usize = 256;
/// The number of parts of the table of habits.
const SHARDS: usize = 16;
/// The maximum number of reads of a habit.
const HABIT_READS_MAX: usize = 64;
/// The maximum number of methods in each part.
const HABITS_MAX: usize = 1024;

/// The memory with which a machine for [`Place::Connection`] is not kept, in bytes.
const SHORT_MACHINE_BYTES: usize = 8 << 20;

/// The outcome of a call that took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// The method's result: not negative.
    pub result: i32,
    /// The method's output.
    pub output: Bytes,
    /// The object's version after the call, if it changed or read anything.
    pub version: Option<u64>,
    /// True if the call changed the object.
    pub wrote: bool,
    /// The lines that the method logged.
    pub log: Vec<String>,
    /// The version of the class.
    pub class_version: u64,
    /// The number of attempts: more than one if others changed the object meanwhile.
    pub attempts: u32,
    /// The instructions that the last run took: those of the machine in whole thousands, and what library functions were
    /// charged. Those of the class's text are among them, whether or not it ran again.
    pub instructions: u64,
}

/// A call to be made.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The object.
    pub object: &'a ObjectId,
    /// The class.
    pub class: &'a str,
    /// The method.
    pub method: &'a str,
    /// The method's input.
    pub input: Bytes,
    /// The session for which the caller acts: if it is fenced at the object, nothing is changed.
    pub fence: Option<u64>,
    /// Bounds instead of the class's own.
    pub bounds: Option<Bounds>,
}

impl<'a> Request<'a> {
    /// Creates a request with an empty input.
    pub fn new(object: &'a ObjectId, class: &'a str, method: &'a str) -> Self {
        Self { object, class, method, input: Bytes::new(), fence: None, bounds: None }
    }

    /// Sets the input.
    pub fn input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = input.into();
        self
    }
}

/// The reads that a method made last, and how often in a row it made the same ones.
#[derive(Default)]
struct ReadPattern {
    reads: Vec<ReadOp>,
    repeats: u32,
}

/// The reads with which an attempt begins.
struct Habit {
    /// The method, by its hash.
    method: u64,
    reads: Vec<ReadOp>,
    /// True if these are known to be the ones that the method makes each time.
    is_known: bool,
}

/// One of the turns that contended objects take.
#[derive(Default)]
struct Turn {
    /// The number of calls that have it or wait for it.
    calls: AtomicU32,
    lock: futures::lock::Mutex<()>,
}

/// The kind of thread on which a method runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A thread that may be held up.
    Thread,
    /// A thread that others wait for: the machines are those that no long method occupies. No turn is taken there: a connection whose
    /// peer reads nothing does not go on, and would hold up all others. A call that should take one is [`CallError::Contended`].
    Connection,
}

/// A runner of methods: machines, and the reads that methods are known to make.
#[derive(derive_more::Debug)]
#[debug("Runtime")]
pub struct Runtime {
    machines: Machines,
    /// The machines for [`Place::Connection`].
    short: Machines,
    habits: Box<[Mutex<HashMap<u64, ReadPattern>>]>,
    hasher: RandomState,
    turns: Box<[Turn]>,
    /// The number of calls that have any of the turns or wait for one.
    waiting: AtomicU32,
}

impl Default for Runtime {
    /// Creates a runtime with a machine for each processor.
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Runtime {
    /// Creates a runtime with a number of machines; as many methods run at the same time.
    pub fn new(machines: usize) -> Self {
        Self {
            machines: Machines::new(machines),
            short: Machines::new(machines),
            habits: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            turns: (0..TURNS).map(|_| Turn::default()).collect(),
            waiting: AtomicU32::new(0),
        }
    }

    pub(crate) fn machines(&self) -> &Machines {
        &self.machines
    }

    /// Calls a method of a class of the catalogue on an object of the store.
    ///
    /// The method runs on the caller's thread, for no longer than its bounds allow. A future that is dropped before it is
    /// done may or may not have changed the object.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing was changed, unless the store does not know.
    pub async fn call(
        &self,
        store: &dyn ObjectStore,
        catalogue: &Arc<Catalogue>,
        request: &Request<'_>,
    ) -> Result<Called, CallError> {
        self.call_at(Place::Thread, store, catalogue, request).await
    }

    /// Calls a method as [`Runtime::call`] does, on a thread of a kind.
    pub(crate) async fn call_at(
        &self,
        place: Place,
        store: &dyn ObjectStore,
        catalogue: &Arc<Catalogue>,
        request: &Request<'_>,
    ) -> Result<Called, CallError> {
        let class = catalogue.class(request.class).map_err(|message| {
            failed(request, errno::EOPNOTSUPP, Failure { message, ..Failure::default() })
        })?;
        let method = self.hasher.hash_one((class.id(), request.method));
        let mut habit = self.habit(method);
        let turn = || self.hasher.hash_one(request.object) as usize % TURNS;
        // As a rule nobody waits for any, and the object's need not be found.
        let is_contended = || {
            self.waiting.load(Ordering::Relaxed) > 0 && self.turns[turn()].calls.load(Ordering::Relaxed) > 0
        };
        let mut mine = None;
        for attempt in 1..=ATTEMPTS_MAX {
            // Whoever comes while others take turns stands in line too.
            if mine.is_none() && (attempt > CONFLICTS_MIN || is_contended()) {
                if place == Place::Connection {
                    return Err(contended(request, attempt - 1));
                }
                mine = Some(Waiting::new(&self.turns[turn()], &self.waiting));
            }
            let _turn = match &mine {
                Some(waiting) => Some(waiting.turn.lock.lock().await),
                None => None,
            };
            let prefetched = !habit.reads.is_empty();
            let attempted = match self.attempt(place, store, catalogue, class, request, habit).await {
                // Other inputs may have made the method read much that this one does not need.
                Err(CallError::Exceeded { bound: Bound::Reads | Bound::Memory, .. }) if prefetched => {
                    self.forget(method);
                    Attempt::Refused(Vec::new())
                }
                attempted => attempted?,
            };
            match attempted {
                Attempt::Done(called) => return Ok(Called { attempts: attempt, ..called }),
                // The same questions will be asked again, most likely: all at once this time.
                Attempt::Refused(again) => habit = Habit { method, reads: again, is_known: false },
            }
        }
        Err(contended(request, ATTEMPTS_MAX))
    }

    async fn attempt(
        &self,
        place: Place,
        store: &dyn ObjectStore,
        catalogue: &Arc<Catalogue>,
        class: &Arc<Class>,
        request: &Request<'_>,
        habit: Habit,
    ) -> Result<Attempt, CallError> {
        let Habit { method, reads, is_known } = habit;
        let prefetched = reads.len();
        let bounds = request.bounds.unwrap_or(class.bounds).clamped();
        let mut fetched = Fetched::default();
        let mut view = View::default();
        let mut left = bounds;
        if !reads.is_empty() && !fetch(store, request.object, &mut view, reads, &bounds, &mut fetched).await?
        {
            return Ok(Attempt::Refused(Vec::new()));
        }
        let (call, result, instructions) = loop {
            if let Some(bound) = fetched.exceeds(&bounds) {
                return Err(exceeded(request, bound, bounds));
            }
            let call = Call::new(std::mem::take(&mut view), catalogue.clone());
            let machines = match place {
                Place::Thread => &self.machines,
                Place::Connection => &self.short,
            };
            let (mut call, ended, instructions) = machines.with(|vm| {
                let input = request.input.clone();
                let done = vm.run(call, class, request.method, input, &left);
                if matches!(done.1, Ended::Fatal(Fatal::Missing)) {
                    left.wall = vm.wall_left();
                }
                // A machine that ran out of something may be large, or in the middle of anything.
                let keep =
                    !matches!(&done.1, Ended::Fatal(fatal) if *fatal != Fatal::Missing) && !vm.is_bloated();
                // The garbage of a large one takes long to collect.
                let is_quick = place == Place::Thread || vm.used() <= SHORT_MACHINE_BYTES;
                (done, keep && is_quick)
            });
            match ended {
                Ended::Returned(result) => break (call, result, instructions),
                Ended::Failed(number, message) => {
                    let output = call.buffers.take(call.output);
                    return Err(failed(request, number, Failure { message, output, log: call.log }));
                }
                Ended::Fatal(Fatal::Bound(bound)) => return Err(exceeded(request, bound, bounds)),
                Ended::Fatal(Fatal::Panic(text)) => {
                    let message = format!("a bug in the runtime: {text}");
                    return Err(failed(request, errno::EFAULT, Failure { message, ..Failure::default() }));
                }
                Ended::Fatal(Fatal::Missing) => {
                    if left.wall.is_zero() {
                        return Err(exceeded(request, Bound::Wall, bounds));
                    }
                    // So a call whose caller is gone ends here, and others get their turn.
                    yield_now().await;
                    let wanted: Vec<ReadOp> = call.missing.take().flatten().into_iter().collect();
                    let asked = wanted.clone();
                    view = call.view;
                    if !fetch(store, request.object, &mut view, asked, &bounds, &mut fetched).await? {
                        return Ok(Attempt::Refused(
                            used(&view, &call.used).cloned().chain(wanted).collect(),
                        ));
                    }
                }
            }
        };
        let mut call = call;
        let output = call.buffers.take(call.output);
        if result < 0 {
            let number = i32::try_from(-result).unwrap_or(errno::EIO);
            let failure = Failure { message: errno::text(number), output, log: call.log };
            return Err(failed(request, number, failure));
        }
        let mut called = Called {
            // The machine has checked the range.
            result: result as i32,
            output,
            version: call.view.known.map(|(version, _)| version),
            wrote: !call.writes.is_empty(),
            log: call.log,
            class_version: class.version,
            attempts: 1,
            instructions,
        };
        if called.wrote {
            let mut transaction = Transaction { writes: call.writes, ..Transaction::new() };
            if let Some((version, _)) = call.view.known {
                transaction = transaction.guard(Guard::Version { version });
            }
            if let Some(token) = request.fence {
                transaction = transaction.guard(Guard::Fence { token });
            }
            match store.apply(request.object, transaction).await? {
                Outcome::Done(done) => called.version = Some(done.version),
                Outcome::Refused(refusal) => {
                    if let Found::Fence(fence) = refusal.found {
                        return Err(CallError::Fenced {
                            object: request.object.clone(),
                            class: request.class.to_owned(),
                            method: request.method.to_owned(),
                            fence,
                        });
                    }
                    return Ok(Attempt::Refused(used(&call.view, &call.used).cloned().collect()));
                }
            }
        }
        // As a rule it has made the same reads again, which is known.
        let is_usual = call.view.answers.len() == prefetched && call.used.iter().copied().eq(0..prefetched);
        if !(is_known && is_usual) {
            self.learn(method, used(&call.view, &call.used));
        }
        Ok(Attempt::Done(called))
    }

    /// Returns the reads that a method makes each time, if it does.
    fn habit(&self, method: u64) -> Habit {
        let habits = self.habits[method as usize % SHARDS].lock();
        let known = habits.get(&method).filter(|pattern| pattern.repeats > 0);
        let reads = known.map_or_else(Vec::new, |pattern| pattern.reads.clone());
        Habit { method, reads, is_known: known.is_some() }
    }

    /// Forgets the reads that a method made.
    fn forget(&self, method: u64) {
        self.habits[method as usize % SHARDS].lock().remove(&method);
    }

    /// Notes the reads that a method made.
    fn learn<'r>(&self, method: u64, reads: impl ExactSizeIterator<Item = &'r ReadOp> + Clone) {
        if reads.len() > HABIT_READS_MAX {
            return self.forget(method);
        }
        let mut habits = self.habits[method as usize % SHARDS].lock();
        if habits.len() >= HABITS_MAX && !habits.contains_key(&method) {
            habits.clear();
        }
        let habit = habits.entry(method).or_default();
        if habit.reads.iter().eq(reads.clone()) {
            habit.repeats = habit.repeats.saturating_add(1);
        } else {
            *habit = ReadPattern { reads: reads.cloned().collect(), repeats: 0 };
        }
    }
}

/// Lets other tasks of the thread run.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// One of the calls that have a turn or wait for it.
struct Waiting<'a> {
    turn: &'a Turn,
    /// The number of all such calls.
    all: &'a AtomicU32,
}

impl<'a> Waiting<'a> {
    fn new(turn: &'a Turn, all: &'a AtomicU32) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        turn.calls.fetch_add(1, Ordering::Relaxed);
        Self { turn, all }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.turn.calls.fetch_sub(1, Ordering::Relaxed);
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of an attempt that did not fail.
enum Attempt {
    /// A call that took effect.
    Done(Called),
    /// The object was changed by another client, and these answers will be needed again.
    Refused(Vec<ReadOp>),
}

/// The reads of one attempt.
#[derive(Default)]
struct Fetched {
    reads: u64,
    bytes: u64,
}

impl Fetched {
    fn exceeds(&self, bounds: &Bounds) -> Option<Bound> {
        if self.reads > bounds.reads.into() {
            return Some(Bound::Reads);
        }
        (self.bytes > bounds.memory_bytes).then_some(Bound::Memory)
    }
}

/// Returns the questions whose answers a call has used, by their positions in its view.
fn used<'v>(view: &'v View, positions: &'v [usize]) -> impl ExactSizeIterator<Item = &'v ReadOp> + Clone {
    positions.iter().map(move |at| &view.answers[*at].0)
}

/// Adds answers to a view; false if the object is not at the view's version any more.
async fn fetch(
    store: &dyn ObjectStore,
    object: &ObjectId,
    view: &mut View,
    reads: Vec<ReadOp>,
    bounds: &Bounds,
    fetched: &mut Fetched,
) -> Result<bool, StoreError> {
    let mut transaction = Transaction { reads: reads.clone(), ..Transaction::new() };
    if let Some((version, _)) = view.known {
        transaction = transaction.guard(Guard::Version { version });
    }
    let Outcome::Done(Done { version, existed, answers }) = store.apply(object, transaction).await? else {
        return Ok(false);
    };
    view.known = Some((version, existed));
    fetched.reads += reads.len().max(1) as u64;
    let alone = reads.len() == 1;
    for (read, mut answer) in reads.into_iter().zip(answers) {
        fetched.bytes += bytes_of(&answer);
        // Boxed because it is rare: what every call waits for stays small.
        if alone
            && is_cut(&answer)
            && !Box::pin(complete(store, object, version, (&read, &mut answer), bounds, fetched)).await?
        {
            return Ok(false);
        }
        // What was cut because other answers filled the reply is asked for again if it is needed.
        if alone || is_whole(&read, &answer) {
            view.answers.push((read, answer));
        }
    }
    Ok(true)
}

/// Returns whether an answer about bytes was cut.
fn is_cut(answer: &Answer) -> bool {
    matches!(answer, Answer::Range(range) if range.next.is_some())
}

/// Adds the rest of a range of bytes to an answer that was cut, as it is where there are more extents than one answer may
/// list. Goes no further once a bound is exceeded. Returns false if the object is not at that version any more.
async fn complete(
    store: &dyn ObjectStore,
    object: &ObjectId,
    version: u64,
    (read, answer): (&ReadOp, &mut Answer),
    bounds: &Bounds,
    fetched: &mut Fetched,
) -> Result<bool, StoreError> {
    let mut largest = bytes_of(answer);
    let ReadOp::Range { fork, range, intent } = read else { return Ok(true) };
    let Answer::Range(whole) = answer else { return Ok(true) };
    if whole.next.is_none() {
        return Ok(true);
    }
    // The joined bytes are held beside one part at a time.
    let joined_bytes = range.end().min(whole.size).saturating_sub(range.offset);
    fetched.bytes += joined_bytes;
    if fetched.exceeds(bounds).is_some() {
        return Ok(true);
    }
    let mut joined = BytesMut::with_capacity(joined_bytes as usize);
    joined.extend_from_slice(&whole.data);
    (whole.data, whole.extents) = (Bytes::new(), Vec::new());
    while let Some(next) = whole.next
        && fetched.exceeds(bounds).is_none()
    {
        yield_now().await;
        let rest = ByteRange::new(next, range.end().saturating_sub(next));
        let rest = ReadOp::Range { fork: fork.clone(), range: rest, intent: *intent };
        let transaction = Transaction::new().read(rest).guard(Guard::Version { version });
        let Outcome::Done(done) = store.apply(object, transaction).await? else { return Ok(false) };
        fetched.reads += 1;
        let Some(part) = done.answers.into_iter().next() else { break };
        let part_bytes = bytes_of(&part);
        fetched.bytes += part_bytes.saturating_sub(largest);
        largest = largest.max(part_bytes);
        let Answer::Range(part) = part else { break };
        joined.extend_from_slice(&part.data);
        whole.next = part.next;
    }
    whole.data = joined.freeze();
    Ok(true)
}

fn bytes_of(answer: &Answer) -> u64 {
    let sum = match answer {
        Answer::Range(range) => range.data.len() + range.extents.len() * size_of::<nacre_object::Extent>(),
        Answer::Value(value) => value.as_ref().map_or(0, Bytes::len),
        Answer::VersionedValue(value) => value.as_ref().map_or(0, |value| value.value.len()),
        Answer::Keys(page) => {
            page.entries.iter().map(|(key, value)| key.as_bytes().len() + value.len() + 64).sum()
        }
        _ => 0,
    };
    sum as u64 + 64
}

fn is_whole(read: &ReadOp, answer: &Answer) -> bool {
    match (read, answer) {
        (_, Answer::Range(range)) => range.next.is_none(),
        (ReadOp::Keys { limit, .. }, Answer::Keys(page)) => {
            !page.more || page.entries.len() == *limit as usize
        }
        (_, Answer::Keys(page)) => !page.more,
        _ => true,
    }
}

fn contended(request: &Request<'_>, attempts: u32) -> CallError {
    CallError::Contended {
        object: request.object.clone(),
        class: request.class.to_owned(),
        method: request.method.to_owned(),
        attempts,
    }
}

pub(crate) fn failed(request: &Request<'_>, errno: i32, failure: Failure) -> CallError {
    CallError::Failed {
        object: request.object.clone(),
        class: request.class.to_owned(),
        method: request.method.to_owned(),
        errno,
        failure: Box::new(failure),
    }
}

pub(crate) fn exceeded(request: &Request<'_>, bound: Bound, bounds: Bounds) -> CallError {
    CallError::Exceeded {
        object: request.object.clone(),
        class: request.class.to_owned(),
        method: request.method.to_owned(),
        bound,
        bounds: Box::new(bounds),
    }
}
