//! Policies: programs in Lua that say how much load a rank sends to each of the others.
//!
//! A policy has one of two forms, and both run unchanged: that of Ceph's balancer, whose text returns a table of targets, and
//! that of the paper (Sevilla et al., *Malacology*, section 6.2, figure 8), whose text or functions `load`, `when` and
//! `where` fill in `targets`. Instead of those, a function `home` may say of each resource where it belongs. It runs in the
//! machine of object classes without any object, under bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use nacre_class::{Bound, Bounds, CallError, Called, Catalogue, Class, ClassError, Request, Runtime, packed};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use nacre_quantity::Escaped;
use serde_json::json;

use crate::limit::{
    BOUNDS, FURTHER_METRICS_MAX, POLICY_BYTES_MAX, POLICY_NAME_BYTES_MAX, TOGETHER_OFFERED_MAX,
    TOGETHER_ROWS_MAX,
};
use crate::metric::{Metrics, NAMES};
use crate::resource::{Kind, Resource, ResourceId};
use crate::setting::Selector;

/// The text in front of a policy's own, on the same line.
const FRONT: &str = "local policy_text = function(...) ";
/// The text behind it.
const BEHIND: &str = include_str!("policy.lua");
/// The name by which errors name the policy's text, and the method that runs it.
const CLASS: &str = "policy";
const METHOD: &str = "run_policy";

/// A policy that cannot be used, or that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy \"{}\" of version {version} failed: {}", Escaped::of(name), Escaped::of(reason))]
pub struct PolicyError {
    /// The policy.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// The reason, as one line.
    pub reason: String,
    /// True if it ran for too long by the clock, which a slow machine may be the cause of.
    pub is_late: bool,
}

/// The input of a policy at a tick.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The rank that it runs for.
    pub whoami: usize,
    /// The metrics of all ranks.
    pub ranks: &'a [Metrics],
    /// The time since any fixed moment: `now`, in seconds.
    pub now: Duration,
    /// The time between two ticks: `tick`, in seconds.
    pub tick: Duration,
    /// The state that it kept at the tick before.
    pub state: Option<&'a Bytes>,
}

/// A policy's choice among resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// That of the settings.
    #[default]
    Default,
    /// One of the selectors.
    Named(Selector),
    /// A function of the policy itself, for each target: `howmuch`.
    Own,
    /// A function of the policy itself, for each resource: `home`. Targets follow from it.
    Home,
}

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// The load that is to be sent to each rank.
    pub targets: Vec<f64>,
    /// The state that is to be kept, if there is a new one.
    pub state: Option<Bytes>,
    /// The lines of `BAL_LOG`, each with its level in front.
    pub log: Vec<String>,
    /// The way in which resources are to be chosen.
    pub choice: Choice,
    /// The resources that its own function chose for ranks, as positions in those that were offered; ranks are in ascending order.
    pub chosen: Vec<(usize, Vec<usize>)>,
    /// The instructions that it took; 0 if it ran for several ranks together.
    pub instructions: u64,
}

/// A rank for which a policy is run together with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    /// The rank, as [`View::whoami`].
    pub whoami: usize,
    /// The state that the policy kept there.
    pub state: Option<&'a Bytes>,
    /// The resources that the policy's own function may choose from.
    pub offered: Option<&'a [&'a Resource]>,
}

/// A policy that can be run. Several threads may run it, one at a time.
#[derive(derive_more::Debug)]
#[debug("Policy({name} {version})")]
pub struct Policy {
    name: String,
    version: u64,
    catalogue: Arc<Catalogue>,
    runtime: Runtime,
    object: ObjectId,
    /// True if it says of each resource where that belongs.
    has_home: bool,
}

impl Policy {
    /// Compiles a policy, and tries it on a few ranks.
    ///
    /// # Errors
    /// [`PolicyError`] if its text is not sound, or if it fails.
    pub fn new(name: &str, version: u64, text: &str) -> Result<Policy, PolicyError> {
        Self::with_bounds(name, version, text, BOUNDS)
    }

    /// Compiles a policy that runs under bounds of its own.
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn with_bounds(name: &str, version: u64, text: &str, bounds: Bounds) -> Result<Policy, PolicyError> {
        let wrong = |reason: String| PolicyError {
            name: name.to_owned(),
            version,
            reason: line(&reason),
            is_late: false,
        };
        check_name(name).map_err(wrong)?;
        if text.len() > POLICY_BYTES_MAX {
            let len = text.len();
            return Err(wrong(format!("its text is {len} bytes long; the limit is {POLICY_BYTES_MAX}")));
        }
        let runtime = Runtime::new(1);
        let framed = Bytes::from(format!("{FRONT}{text}{BEHIND}"));
        let class = nacre_class::validate(&runtime, CLASS, framed.clone(), bounds);
        class.map_err(|error| match error {
            ClassError::Refused { reason, .. } => {
                let is_late = reason.ends_with(&Bound::Wall.sentence(&bounds));
                PolicyError { is_late, ..wrong(reason) }
            }
            error => wrong(error.to_string()),
        })?;
        // A text that is not Lua is told so first.
        if !["return", "targets", "where"].iter().any(|word| text.contains(word)) {
            return Err(wrong("it neither returns a table of targets nor fills in targets".to_owned()));
        }
        let class = Class::new(CLASS.to_owned(), version, framed, Vec::new(), bounds);
        let object = ObjectId::new("nacre/balance").map_err(|error| wrong(error.message))?;
        let mut policy = Policy {
            name: name.to_owned(),
            version,
            catalogue: Arc::new(Catalogue::of(class)),
            runtime,
            object,
            has_home: false,
        };
        policy.has_home = policy.try_out()?;
        Ok(policy)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether it says of each resource where that belongs, so that resources are offered to it from the first run on.
    pub(crate) fn has_home(&self) -> bool {
        self.has_home
    }

    fn failure(&self, reason: &str, is_late: bool) -> PolicyError {
        PolicyError { name: self.name.clone(), version: self.version, reason: line(reason), is_late }
    }

    /// Runs the policy for each of three ranks, of which the first has all the load. Returns whether it says of each resource where
    /// that belongs.
    fn try_out(&self) -> Result<bool, PolicyError> {
        let loaded = Metrics {
            request_rate: 15.0,
            queue_length: 2.0,
            processor: 0.9,
            processor_now: 0.9,
            memory_bytes: 1e8,
            own_load: 15.0,
            all_load: 15.0,
            kinds: [5.0, 5.0, 5.0],
            resources: 3.0,
            ..Metrics::default()
        };
        let ranks = [loaded, Metrics::default(), Metrics::default()];
        let mut has_home = false;
        for whoami in 0..ranks.len() {
            let tick = Duration::from_secs(10);
            let view = View { whoami, ranks: &ranks, now: tick, tick, state: None };
            if self.run(&view, None)?.choice == Choice::Home {
                has_home = true;
                let tried =
                    Kind::ALL.map(|kind| Resource { id: ResourceId { kind, name: "1".into() }, load: 5.0 });
                let tried: Vec<&Resource> = tried.iter().collect();
                self.run(&view, Some(&tried[..]))?;
            }
        }
        Ok(has_home)
    }

    /// Runs the policy for one rank. With resources, its own function to choose some is called as well, if it has one.
    ///
    /// # Errors
    /// [`PolicyError`]; whatever it wanted to keep is then to be forgotten.
    pub fn run(&self, view: &View<'_>, offered: Option<&[&Resource]>) -> Result<Evaluated, PolicyError> {
        let called = self.call(view, &[Seat { whoami: view.whoami, state: view.state, offered }])?;
        let mut evaluated = decode(&called.output, view.ranks.len(), offered.unwrap_or_default())
            .map_err(|reason| self.failure(&reason, false))?;
        evaluated.log = called.log;
        evaluated.instructions = called.instructions;
        Ok(evaluated)
    }

    /// Runs the policy for several ranks, which all see the same metrics: those are handed to it once for many ranks. Each rank gets
    /// the result that [`Policy::run`] has for it. Fewer results come back if it is stopped.
    pub(crate) fn run_all(
        &self,
        view: &View<'_>,
        seats: &[Seat<'_>],
        is_stopped: &dyn Fn() -> bool,
    ) -> Vec<Result<Evaluated, PolicyError>> {
        let rows_max = (TOGETHER_ROWS_MAX / view.ranks.len().max(1)).max(1);
        let (mut all, mut left) = (Vec::with_capacity(seats.len()), seats);
        while !left.is_empty() {
            let (mut count, mut offers) = (0, 0);
            while let Some(seat) = left.get(count)
                && count < rows_max
                && offers <= TOGETHER_OFFERED_MAX
            {
                offers += seat.offered.map_or(0, <[&Resource]>::len);
                count += 1;
            }
            let (together, rest) = left.split_at(count);
            left = rest;
            let mut found = self.run_together(view, together).into_iter();
            for seat in together {
                if is_stopped() {
                    return all;
                }
                // One that fails, or exceeds a bound together with others, says alone what is wrong with it.
                let evaluated = found.next().flatten().map_or_else(
                    || {
                        let View { ranks, now, tick, .. } = *view;
                        let view = View { whoami: seat.whoami, ranks, now, tick, state: seat.state };
                        self.run(&view, seat.offered)
                    },
                    Ok,
                );
                all.push(evaluated);
            }
        }
        all
    }

    /// Runs the policy for several ranks in one call. Returns the results as far as there are any.
    fn run_together(&self, view: &View<'_>, seats: &[Seat<'_>]) -> Vec<Option<Evaluated>> {
        if seats.len() < 2 {
            return Vec::new();
        }
        let Ok(called) = self.call(view, seats) else { return Vec::new() };
        let mut output = Reader(&called.output);
        let results = seats.iter().map_while(|seat| {
            if output.byte()? == 0 {
                return Some(None);
            }
            let evaluated = decode(output.section()?, view.ranks.len(), seat.offered.unwrap_or_default());
            let lines = output.number()?;
            let mut log = Vec::new();
            for _ in 0..lines {
                log.push(String::from_utf8_lossy(output.section()?).into_owned());
            }
            Some(evaluated.ok().map(|evaluated| Evaluated { log, ..evaluated }))
        });
        results.collect()
    }

    /// Makes the call that runs the policy for some ranks.
    fn call(&self, view: &View<'_>, seats: &[Seat<'_>]) -> Result<Called, PolicyError> {
        let input = encode(view, seats).map_err(|reason| self.failure(&reason, false))?;
        let request = Request::new(&self.object, CLASS, METHOD).input(input);
        // Without an object there is nothing to wait for.
        match self.runtime.call(&NoObject, &self.catalogue, &request).now_or_never() {
            Some(Ok(called)) => Ok(called),
            Some(Err(CallError::Exceeded { bound, bounds, .. })) => {
                Err(self.failure(&bound.sentence(&bounds), bound == Bound::Wall))
            }
            Some(Err(CallError::Failed { failure, .. })) => Err(self.failure(&failure.message, false)),
            Some(Err(error)) => Err(self.failure(&error.to_string(), false)),
            None => Err(self.failure("it reads an object, and a policy has none", false)),
        }
    }
}

/// Checks the name of a policy: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit.
///
/// # Errors
/// A sentence.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > POLICY_NAME_BYTES_MAX {
        return Err(format!("the name of a policy has at most {POLICY_NAME_BYTES_MAX} bytes"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(allowed) {
        let rules =
            "it must begin with a letter or a digit, and consist of letters, digits, \".\", \"_\" and \"-\"";
        return Err(format!("\"{}\" is not a valid name for a policy: {rules}", Escaped::of(name)));
    }
    Ok(())
}

/// Returns a text as one line.
fn line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn put_section(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
    let len = u32::try_from(bytes.len()).map_err(|_| "there is too much for a policy to see".to_owned())?;
    out.extend(len.to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// The input: a packed head, the metrics as floats in rows, and for each rank that is decided for its number, the packed state, and
/// the resources that are offered.
fn encode(view: &View<'_>, seats: &[Seat<'_>]) -> Result<Bytes, String> {
    let further: BTreeSet<&str> =
        view.ranks.iter().flat_map(|metrics| metrics.further.keys().map(String::as_str)).collect();
    let further: Vec<&str> = further.into_iter().take(FURTHER_METRICS_MAX).collect();
    let names: Vec<&str> = NAMES.into_iter().chain(further.iter().copied()).collect();
    let (now, tick) = (view.now.as_secs_f64(), view.tick.as_secs_f64());
    let head =
        packed::pack(&[json!(view.ranks.len()), json!(seats.len()), json!(now), json!(tick), json!(names)])?;
    let mut out = Vec::with_capacity(head.len() + 64 + view.ranks.len() * names.len() * size_of::<f64>());
    put_section(&mut out, &head)?;
    for metrics in view.ranks {
        let values = metrics.values();
        let further = further.iter().map(|name| metrics.further.get(*name).copied().unwrap_or(0.0));
        out.extend(values.into_iter().chain(further).flat_map(f64::to_le_bytes));
    }
    let too_much = || "there is too much for a policy to see".to_owned();
    for seat in seats {
        out.extend(u32::try_from(seat.whoami).map_err(|_| too_much())?.to_le_bytes());
        put_section(&mut out, seat.state.map_or(&[][..], |state| &state[..]))?;
        let offered = seat.offered.unwrap_or_default();
        out.push(u8::from(seat.offered.is_some()));
        out.extend(u32::try_from(offered.len()).map_err(|_| too_much())?.to_le_bytes());
        for Resource { id, load } in offered {
            out.push(id.kind as u8);
            out.extend(load.to_le_bytes());
            out.extend(u16::try_from(id.name.len()).map_err(|_| too_much())?.to_le_bytes());
            out.extend_from_slice(id.name.as_bytes());
        }
    }
    Ok(out.into())
}

/// Bytes that are read from their beginning on.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn byte(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<usize> {
        self.chunk::<4>().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn float(&mut self) -> Option<f64> {
        self.chunk::<8>().map(f64::from_le_bytes)
    }

    /// Returns bytes behind their length.
    fn section(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        let (section, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(section)
    }
}

/// Reads the result for one rank: the state, the targets, the way of choosing with the name of a selector, and the choices.
fn decode(output: &[u8], ranks: usize, offered: &[&Resource]) -> Result<Evaluated, String> {
    let nonsense = || "its output cannot be that of a policy".to_owned();
    let mut output = Reader(output);
    let state = output.section().ok_or_else(nonsense)?;
    let state = (!state.is_empty()).then(|| Bytes::copy_from_slice(state));
    let mut targets = vec![0.0; ranks];
    for _ in 0..output.number().ok_or_else(nonsense)? {
        let (rank, target) = (output.number(), output.float());
        let target = target.filter(|target| target.is_finite() && *target >= 0.0).ok_or_else(nonsense)?;
        let of_rank = rank.and_then(|rank| targets.get_mut(rank));
        *of_rank.ok_or_else(nonsense)? = target;
    }
    let (choice, name) = (output.byte(), output.section().ok_or_else(nonsense)?);
    let choice = match choice {
        Some(0) => Choice::Default,
        Some(1) => {
            let name = String::from_utf8_lossy(name).parse::<Selector>();
            Choice::Named(name.map_err(|why| format!("howmuch: {why}"))?)
        }
        Some(2) => Choice::Own,
        Some(3) => Choice::Home,
        _ => return Err(nonsense()),
    };
    let mut chosen: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for _ in 0..output.number().ok_or_else(nonsense)? {
        // Lua counts from 1.
        let position = output.number().and_then(|number| number.checked_sub(1));
        let position = position.filter(|position| *position < offered.len()).ok_or_else(nonsense)?;
        let rank = output.number().filter(|rank| *rank < ranks).ok_or_else(nonsense)?;
        chosen.entry(rank).or_default().push(position);
    }
    if choice == Choice::Home {
        targets.fill(0.0);
        for (rank, positions) in &chosen {
            targets[*rank] = positions.iter().map(|position| offered[*position].load).sum();
        }
    }
    Ok(Evaluated { targets, state, choice, chosen: chosen.into_iter().collect(), ..Evaluated::default() })
}

/// The object that policies do not have.
struct NoObject;

impl NoObject {
    fn refusal<T>() -> Reply<T> {
        let text = "a policy sees the metrics of ranks, and no object";
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

#[cfg(test)]
mod tests;
