//! The metrics of a rank, as policies see them, and the counters that they come from: no clock.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::{FURTHER_METRICS_MAX, METRIC_NAME_BYTES_MAX, RESOURCES_MAX};
use crate::resource::{Resource, ResourceId};

/// The time in which a rate falls to half of it if nothing more happens.
pub const HALF_LIFE: Duration = Duration::from_secs(5);

/// The metrics of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Requests per second, with decay: `req_rate`.
    pub request_rate: f64,
    /// Requests that wait: `queue_len`.
    pub queue_length: f64,
    /// The load of the processor over the last minute, where 1 is one processor: `cpu_load_avg`.
    pub processor: f64,
    /// The load of the processor now: `cpu_load_inst`.
    pub processor_now: f64,
    /// The memory of the process in bytes: `mem`.
    pub memory_bytes: f64,
    /// The load of what the rank has authority over: `auth.meta_load`.
    pub own_load: f64,
    /// The load of all that the rank does, also what it forwards: `all.meta_load`.
    pub all_load: f64,
    /// The load of its subtrees, of its sequencers and of its groups, in the order of [`Kind::ALL`](crate::Kind::ALL):
    /// `load.subtree` and so on.
    pub kinds: [f64; 3],
    /// The number of its resources: `resources`.
    pub resources: f64,
    /// Further metrics by their names.
    pub further: BTreeMap<String, f64>,
}

/// The names of the metrics that every rank has.
pub const NAMES: [&str; 11] = [
    "req_rate",
    "queue_len",
    "cpu_load_avg",
    "cpu_load_inst",
    "mem",
    "auth.meta_load",
    "all.meta_load",
    "load.subtree",
    "load.sequencer",
    "load.group",
    "resources",
];

impl Metrics {
    /// Returns the values in the order of [`NAMES`].
    pub fn values(&self) -> [f64; NAMES.len()] {
        let [subtree, sequencer, group] = self.kinds;
        [
            self.request_rate,
            self.queue_length,
            self.processor,
            self.processor_now,
            self.memory_bytes,
            self.own_load,
            self.all_load,
            subtree,
            sequencer,
            group,
            self.resources,
        ]
    }

    /// Adds up the loads of resources.
    pub fn count(&mut self, resources: &[Resource]) {
        self.kinds = [0.0; 3];
        for resource in resources {
            self.kinds[resource.id.kind as usize] += resource.load;
        }
        self.own_load = self.kinds.iter().sum();
        self.resources = resources.len() as f64;
    }

    /// Counts the load of a group more, or less if it is negative. What cannot be stays as it is.
    pub(crate) fn add_group(&mut self, load: f64) {
        let [_, _, group] = &mut self.kinds;
        for value in [&mut self.request_rate, &mut self.own_load, &mut self.all_load, group] {
            let after = (*value + load).max(0.0);
            if after.is_finite() {
                *value = after;
            }
        }
    }

    /// Checks metrics from outside: every value is finite and not negative, and there are not too many.
    ///
    /// # Errors
    /// A sentence about what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if let Some((name, value)) = NAMES.iter().zip(self.values()).find(|(_, value)| !sound(*value)) {
            return Err(format!("its metric {name} is {value}"));
        }
        if self.further.len() > FURTHER_METRICS_MAX {
            let len = self.further.len();
            return Err(format!("it has {len} further metrics; the limit is {FURTHER_METRICS_MAX}"));
        }
        match self.further.iter().find(|(name, value)| !sound(**value) || name.len() > METRIC_NAME_BYTES_MAX)
        {
            Some((name, value)) if name.len() <= METRIC_NAME_BYTES_MAX => {
                Err(format!("its metric {name} is {value}"))
            }
            Some(_) => Err(format!("the name of a metric has more than {METRIC_NAME_BYTES_MAX} bytes")),
            None => Ok(()),
        }
    }
}

/// A number of events that decays exponentially, from which follows a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decayed {
    value: f64,
    at: Duration,
}

impl Decayed {
    /// Adds events. Times are since any fixed moment, and do not go back.
    pub fn add(&mut self, now: Duration, amount: f64) {
        self.value = self.value(now) + amount;
        self.at = self.at.max(now);
    }

    fn value(&self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.at).as_secs_f64();
        self.value * (-age / HALF_LIFE.as_secs_f64()).exp2()
    }

    /// Returns the rate per second.
    pub fn rate(&self, now: Duration) -> f64 {
        self.value(now) * std::f64::consts::LN_2 / HALF_LIFE.as_secs_f64()
    }
}

/// A metric of which a rank's program knows the value.
pub trait Counter: Send {
    /// Returns the name, as policies see it.
    fn name(&self) -> &str;

    /// Returns the value: finite and not negative.
    fn read(&mut self, now: Duration) -> f64;
}

/// The rate below which a resource is forgotten.
const RATE_MIN: f64 = 1e-3;

/// Counts what happens to resources, and gathers a rank's metrics.
#[derive(derive_more::Debug, Default)]
pub struct Counters {
    rates: HashMap<ResourceId, Decayed>,
    total: Decayed,
    #[debug(skip)]
    plugged: Vec<Box<dyn Counter>>,
}

impl Counters {
    /// Counts requests to a resource. Where there are too many resources, those without load are forgotten, and what is
    /// still too much counts for the rank alone.
    pub fn count(&mut self, id: &ResourceId, now: Duration, requests: f64) {
        self.total.add(now, requests);
        if let Some(rate) = self.rates.get_mut(id) {
            return rate.add(now, requests);
        }
        if self.rates.len() >= RESOURCES_MAX {
            self.rates.retain(|_, rate| rate.rate(now) >= RATE_MIN);
        }
        if self.rates.len() < RESOURCES_MAX {
            self.rates.entry(id.clone()).or_default().add(now, requests);
        }
    }

    /// Forgets a resource that was moved away or removed.
    pub fn forget(&mut self, id: &ResourceId) {
        self.rates.remove(id);
    }

    /// Adds a metric, or replaces the one of its name. Returns false if there are too many.
    pub fn plug(&mut self, counter: Box<dyn Counter>) -> bool {
        self.plugged.retain(|known| known.name() != counter.name());
        let fits = self.plugged.len() < FURTHER_METRICS_MAX && counter.name().len() <= METRIC_NAME_BYTES_MAX;
        if fits {
            self.plugged.push(counter);
        }
        fits
    }

    /// Returns the resources with their loads, and the metrics that follow from them.
    pub fn gather(&mut self, now: Duration) -> (Metrics, Vec<Resource>) {
        let rates = self.rates.iter().map(|(id, rate)| Resource { id: id.clone(), load: rate.rate(now) });
        let mut resources: Vec<Resource> = rates.filter(|resource| resource.load >= RATE_MIN).collect();
        resources.sort_by(|a, b| a.id.cmp(&b.id));
        let mut metrics = Metrics { request_rate: self.total.rate(now), ..Metrics::default() };
        metrics.count(&resources);
        // What was moved away does not count any more, though the rate of requests has yet to fall.
        metrics.all_load = metrics.own_load;
        for counter in &mut self.plugged {
            let value = counter.read(now);
            if value.is_finite() && value >= 0.0 {
                metrics.further.insert(counter.name().to_owned(), value);
            }
        }
        (metrics, resources)
    }

    /// Returns the number of resources that are counted.
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// Returns whether no resource is counted.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(f64);

    impl Counter for Fixed {
        fn name(&self) -> &str {
            "sessions"
        }

        fn read(&mut self, _now: Duration) -> f64 {
            self.0
        }
    }

    #[test]
    fn rates_follow_requests_and_halve() {
        let mut counters = Counters::default();
        let id: ResourceId = "sequencer:a".parse().unwrap();
        for millisecond in 0..60_000 {
            counters.count(&id, Duration::from_millis(millisecond), 0.1);
        }
        let (metrics, resources) = counters.gather(Duration::from_secs(60));
        assert!((metrics.request_rate - 100.0).abs() < 5.0, "{metrics:?}");
        assert!((resources[0].load - 100.0).abs() < 5.0, "{resources:?}");
        assert_eq!(metrics.kinds, [0.0, resources[0].load, 0.0]);
        let (later, _) = counters.gather(Duration::from_secs(65));
        assert!((later.request_rate * 2.0 - metrics.request_rate).abs() < 0.1);
        assert!(counters.gather(Duration::from_secs(3600)).1.is_empty());
    }

    #[test]
    fn counters_are_plugged_and_bad_values_left_out() {
        let mut counters = Counters::default();
        assert!(counters.plug(Box::new(Fixed(4.0))));
        assert_eq!(counters.gather(Duration::ZERO).0.further["sessions"], 4.0);
        assert!(counters.plug(Box::new(Fixed(f64::NAN))));
        assert!(counters.gather(Duration::ZERO).0.further.is_empty());
    }

    #[test]
    fn metrics_from_outside_are_checked() {
        assert!(Metrics::default().check().is_ok());
        let nan = Metrics { queue_length: f64::NAN, ..Metrics::default() };
        assert!(nan.check().unwrap_err().contains("queue_len"));
        let negative = Metrics { further: BTreeMap::from([("x".to_owned(), -1.0)]), ..Metrics::default() };
        assert!(negative.check().unwrap_err().contains("x"));
    }
}
