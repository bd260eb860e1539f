//! A script that decides who caches a resource, in the machine of object classes and without any object.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use nacre_class::{Bounds, CallError, Catalogue, Class, ClassError, Request, Runtime};
use nacre_meta::capability::{Decision, Party, Undecided, View};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use nacre_quantity::Escaped;

/// The maximum length of a script's text, in bytes.
pub(crate) const SCRIPT_BYTES_MAX: usize = 48 << 10;

/// The bounds of one run. They are tight, because the rank's requests wait for it.
pub(crate) const BOUNDS: Bounds = Bounds {
    instructions: 100_000,
    memory_bytes: 8 << 20,
    output_bytes: 1 << 10,
    wall: Duration::from_millis(10),
    reads: 1,
};
/// The time that a text may take when it is loaded, for which nobody waits: a machine that stands still makes no script unsound.
const LOAD_WALL: Duration = Duration::from_secs(60);
/// The time for which a script that has exceeded a bound is not run.
const REST: Duration = Duration::from_secs(1);
/// The time between two lines in the log about the failures of one script.
const SILENCE: Duration = Duration::from_secs(60);

/// The text behind a script's own.
const FRAME: &str = include_str!("frame.lua");
/// The name by which errors name the script's text, and the method that runs it.
const CLASS: &str = "policy";
const METHOD: &str = "__decide";

/// A script that can be run.
#[derive(derive_more::Debug)]
#[debug("Script({name} {version})")]
pub(crate) struct Script {
    name: String,
    version: u64,
    catalogue: Arc<Catalogue>,
    runtime: Runtime,
    object: ObjectId,
    failures: Mutex<Failures>,
}

/// The failures of a script.
#[derive(Default)]
struct Failures {
    /// The time until which it is not run.
    rests_until: Duration,
    /// The time of the last line about it in the log.
    said: Option<Duration>,
}

/// The reason why a script did not decide.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub reason: String,
    /// True if it exceeded a bound, and would as likely do so again.
    pub is_costly: bool,
}

impl Script {
    /// Compiles a script, and tries it on a holder with two who wait.
    ///
    /// # Errors
    /// A sentence, if its text is not sound, or if it fails.
    pub fn new(name: &str, version: u64, text: &str, bounds: Bounds) -> Result<Script, String> {
        if text.len() > SCRIPT_BYTES_MAX {
            let len = text.len();
            return Err(format!("its text is {len} bytes long; the limit is {SCRIPT_BYTES_MAX}"));
        }
        let runtime = Runtime::new(1);
        let framed = Bytes::from(format!("{text}{FRAME}"));
        let load = Bounds { wall: LOAD_WALL.max(bounds.wall), ..bounds };
        nacre_class::validate(&runtime, CLASS, framed.clone(), load).map_err(|error| match error {
            ClassError::Refused { reason, .. } => line(&reason),
            error => line(&error.to_string()),
        })?;
        let class = Class::new(CLASS.to_owned(), version, framed, Vec::new(), bounds);
        let script = Script {
            name: name.to_owned(),
            version,
            catalogue: Arc::new(Catalogue::of(class)),
            runtime,
            object: ObjectId::new("nacre/map/policies").map_err(|error| error.message)?,
            failures: Mutex::default(),
        };
        script.try_out(load).map_err(|failure| failure.reason)?;
        Ok(script)
    }

    /// Runs the script before anything depends on it, which also compiles it where it will run.
    fn try_out(&self, bounds: Bounds) -> Result<(), Failure> {
        let party = |order: u64, time_ms: u64| Party {
            session: order,
            order,
            time: Duration::from_millis(time_ms),
            requests: 2,
            grants: 1,
            operations: 100 * order,
            is_round_trip: false,
        };
        let waiters = [party(2, 3), party(3, 1)];
        let view = View { lease: Duration::from_secs(3), holder: party(1, 5), waiters: &waiters };
        for is_release in [false, true] {
            self.run(is_release, &view, Some(bounds))?;
        }
        Ok(())
    }

    /// Decides when the holder is asked, and who is next.
    ///
    /// # Errors
    /// [`Undecided`] if it fails, which is said in the log now and then.
    pub fn on_request(&self, now: Duration, view: &View<'_>) -> Result<Decision, Undecided> {
        self.decide(now, false, view)
    }

    /// Decides who is next.
    ///
    /// # Errors
    /// As [`Script::on_request`].
    pub fn on_release(&self, now: Duration, view: &View<'_>) -> Result<Option<usize>, Undecided> {
        Ok(self.decide(now, true, view)?.next)
    }

    fn decide(&self, now: Duration, is_release: bool, view: &View<'_>) -> Result<Decision, Undecided> {
        // It is two times, which are sound whenever a thread ends.
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if now < failures.rests_until {
            return Err(Undecided);
        }
        let failure = match self.run(is_release, view, None) {
            Ok(decision) => return Ok(decision),
            Err(failure) => failure,
        };
        if failure.is_costly {
            failures.rests_until = now + REST;
        }
        if failures.said.is_none_or(|said| said + SILENCE <= now) {
            failures.said = Some(now);
            let Script { name, version, .. } = self;
            let reason = &failure.reason;
            tracing::warn!(
                "the policy \"{name}\" of version {version} failed, and holders are asked at once instead: {}",
                Escaped::of(reason)
            );
        }
        Err(Undecided)
    }

    /// Runs the script once, by its own bounds or by others.
    ///
    /// # Errors
    /// The failure of the script.
    pub fn run(
        &self,
        is_release: bool,
        view: &View<'_>,
        bounds: Option<Bounds>,
    ) -> Result<Decision, Failure> {
        let cheap = |reason: &str| Failure { reason: line(reason), is_costly: false };
        let mut request = Request::new(&self.object, CLASS, METHOD).input(encode(is_release, view));
        request.bounds = bounds;
        // Without an object there is nothing to wait for.
        let called = self.runtime.call(&NoObject, &self.catalogue, &request).now_or_never();
        match called {
            Some(Ok(called)) => decode(&called.output, view.waiters.len())
                .ok_or_else(|| cheap("its output cannot be that of a policy")),
            Some(Err(CallError::Exceeded { bound, bounds, .. })) => {
                Err(Failure { reason: bound.sentence(&bounds), is_costly: true })
            }
            Some(Err(CallError::Failed { failure, .. })) => Err(cheap(&failure.message)),
            Some(Err(error)) => Err(cheap(&error.to_string())),
            None => Err(cheap("it reads an object, and a policy has none")),
        }
    }
}

/// Returns a text as one line.
fn line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The input: whether the resource was given back, the lease, the number of those who wait, the holder, and they; all of it
/// integers of 8 bytes.
fn encode(is_release: bool, view: &View<'_>) -> Bytes {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let head = [i64::from(is_release), micros(view.lease), view.waiters.len() as i64];
    let parties = std::iter::once(&view.holder).chain(view.waiters).flat_map(|party| {
        [
            count(party.session),
            count(party.order),
            micros(party.time),
            count(party.requests),
            count(party.grants),
            count(party.operations),
            i64::from(party.is_round_trip),
        ]
    });
    head.into_iter().chain(parties).flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into()
}

/// Reads the output: a time in microseconds, and the number of a waiter, or 0 for none.
fn decode(output: &Bytes, waiters: usize) -> Option<Decision> {
    let (after, rest) = output.split_first_chunk::<8>()?;
    let after = u64::try_from(i64::from_le_bytes(*after)).ok()?;
    let number = usize::try_from(i64::from_le_bytes(rest.try_into().ok()?)).ok()?;
    let next = match number {
        0 => None,
        number if number <= waiters => Some(number - 1),
        _ => return None,
    };
    Some(Decision { after: Duration::from_micros(after), next })
}

/// The object that scripts do not have.
struct NoObject;

impl NoObject {
    fn refusal<T>() -> Reply<T> {
        let text = "a policy sees who holds a resource and who waits for it, and no object";
        Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
    }
}

impl ObjectStore for NoObject {
    fn apply(&self, _object: &ObjectId, _transaction: Transaction) -> Reply<Outcome> {
        Self::refusal()
    }

    fn list(&self, _after: Option<&ObjectId>, _limit: usize) -> Reply<Vec<ObjectId>> {
        Self::refusal()
    }
}
