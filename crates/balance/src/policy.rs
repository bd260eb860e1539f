//! Policies: programs in Lua that say how much load a rank sends to each of the others.
//!
//! A policy has one of two forms, and both run unchanged: that of Ceph's balancer, whose text returns a table of targets, and
//! that of the paper (Sevilla et al., *Malacology*, section 6.2, figure 8), whose text or functions `load`, `when` and
//! `where` fill in `targets`. It runs in the machine of object classes without any object, under bounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use nacre_class::{Bound, Bounds, CallError, Catalogue, Class, ClassError, Request, Runtime, packed};
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use nacre_quantity::Escaped;
use serde_json::{Value, json};

use crate::limit::{BOUNDS, FURTHER_METRICS_MAX, POLICY_BYTES_MAX, POLICY_NAME_BYTES_MAX};
use crate::metric::{Metrics, NAMES};
use crate::resource::Resource;
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
    /// A function of the policy itself.
    Own,
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
    /// The resources that its own function chose for ranks, as positions in those that were offered.
    pub chosen: Vec<(usize, Vec<usize>)>,
    /// The instructions that it took.
    pub instructions: u64,
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
        let policy = Policy {
            name: name.to_owned(),
            version,
            catalogue: Arc::new(Catalogue::of(class)),
            runtime,
            object,
        };
        policy.try_out()?;
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

    fn failure(&self, reason: &str, is_late: bool) -> PolicyError {
        PolicyError { name: self.name.clone(), version: self.version, reason: line(reason), is_late }
    }

    /// Runs the policy for each of three ranks, of which the first has all the load.
    fn try_out(&self) -> Result<(), PolicyError> {
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
        for whoami in 0..ranks.len() {
            let tick = Duration::from_secs(10);
            self.run(&View { whoami, ranks: &ranks, now: tick, tick, state: None }, None)?;
        }
        Ok(())
    }

    /// Runs the policy for one rank. With resources, its own function to choose some is called as well, if it has one.
    ///
    /// # Errors
    /// [`PolicyError`]; whatever it wanted to keep is then to be forgotten.
    pub fn run(&self, view: &View<'_>, offered: Option<&[&Resource]>) -> Result<Evaluated, PolicyError> {
        let input = encode(view, offered).map_err(|reason| self.failure(&reason, false))?;
        let request = Request::new(&self.object, CLASS, METHOD).input(input);
        // Without an object there is nothing to wait for.
        let called = self.runtime.call(&NoObject, &self.catalogue, &request).now_or_never();
        let called = match called {
            Some(Ok(called)) => called,
            Some(Err(CallError::Exceeded { bound, bounds, .. })) => {
                return Err(self.failure(&bound.sentence(&bounds), bound == Bound::Wall));
            }
            Some(Err(CallError::Failed { failure, .. })) => return Err(self.failure(&failure.message, false)),
            Some(Err(error)) => return Err(self.failure(&error.to_string(), false)),
            None => return Err(self.failure("it reads an object, and a policy has none", false)),
        };
        let offers = offered.map_or(0, <[&Resource]>::len);
        let mut evaluated = decode(&called.output, view.ranks.len(), offers)
            .map_err(|reason| self.failure(&reason, false))?;
        evaluated.log = called.log;
        evaluated.instructions = called.instructions;
        Ok(evaluated)
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

/// The input: a packed head, the packed state, the metrics as floats in rows, the packed resources.
fn encode(view: &View<'_>, offered: Option<&[&Resource]>) -> Result<Bytes, String> {
    let further: BTreeSet<&str> =
        view.ranks.iter().flat_map(|metrics| metrics.further.keys().map(String::as_str)).collect();
    let further: Vec<&str> = further.into_iter().take(FURTHER_METRICS_MAX).collect();
    let names: Vec<&str> = NAMES.into_iter().chain(further.iter().copied()).collect();
    let (now, tick) = (view.now.as_secs_f64(), view.tick.as_secs_f64());
    let head =
        packed::pack(&[json!(view.whoami), json!(view.ranks.len()), json!(now), json!(tick), json!(names)])?;
    let mut out = Vec::with_capacity(head.len() + 64 + view.ranks.len() * names.len() * size_of::<f64>());
    put_section(&mut out, &head)?;
    put_section(&mut out, view.state.map_or(&[][..], |state| &state[..]))?;
    for metrics in view.ranks {
        let values = metrics.values();
        let further = further.iter().map(|name| metrics.further.get(*name).copied().unwrap_or(0.0));
        out.extend(values.into_iter().chain(further).flat_map(f64::to_le_bytes));
    }
    if let Some(offered) = offered {
        let list: Vec<Value> = offered
            .iter()
            .map(|resource| json!([resource.id.kind.name(), &*resource.id.name, resource.load]))
            .collect();
        put_section(&mut out, &packed::pack(&[Value::Array(list)])?)?;
    }
    Ok(out.into())
}

fn decode(output: &Bytes, ranks: usize, offers: usize) -> Result<Evaluated, String> {
    let nonsense = || "its output cannot be that of a policy".to_owned();
    let (len, rest) = output.split_first_chunk::<4>().ok_or_else(nonsense)?;
    let len = u32::from_le_bytes(*len) as usize;
    let (state, rest) = rest.split_at_checked(len).ok_or_else(nonsense)?;
    let values = packed::unpack(rest)?;
    let [Value::Array(list), selector, choices] = &values[..] else { return Err(nonsense()) };
    let number = |value: Option<&Value>, below: usize| -> Result<usize, String> {
        let number = value.and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < below).ok_or_else(nonsense)
    };
    let mut targets = vec![0.0; ranks];
    for pair in list {
        let target =
            pair.get(1).and_then(Value::as_f64).filter(|target| *target >= 0.0).ok_or_else(nonsense)?;
        targets[number(pair.get(0), ranks)?] = target;
    }
    let choice = match selector {
        Value::Null => Choice::Default,
        Value::String(name) => {
            Choice::Named(name.parse::<Selector>().map_err(|why| format!("howmuch: {why}"))?)
        }
        _ => Choice::Own,
    };
    let mut chosen = Vec::new();
    for one in choices.as_array().into_iter().flatten() {
        let numbers = one.as_array().ok_or_else(nonsense)?;
        let rank = number(numbers.first(), ranks)?;
        // Lua counts from 1.
        let positions = numbers[1..].iter().map(|value| number(Some(value), offers + 1));
        let positions =
            positions.map(|found| found.and_then(|found| found.checked_sub(1).ok_or_else(nonsense)));
        chosen.push((rank, positions.collect::<Result<_, String>>()?));
    }
    let state = (!state.is_empty()).then(|| Bytes::copy_from_slice(state));
    Ok(Evaluated { targets, state, choice, chosen, ..Evaluated::default() })
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
