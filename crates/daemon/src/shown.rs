//! The role `store` as shown over HTTP.

use std::time::Instant;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_object::pace::PaceTotals;
use nacre_quantity::{grouped, size};
use nacre_remote::{Operation, RequestOutcome};
use nacre_status::{Metrics, Part, Section};
use serde_json::Value;

use crate::metrics::{Source, Sources};

/// The sources as a part of the daemon.
pub(crate) struct StorePart(pub(crate) std::sync::Arc<Sources>);

impl Part for StorePart {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "nacre", source: Box::new(Source(self.0.clone())) })).boxed()
    }

    /// Checks whether the store takes writes, or, if it is elsewhere, whether it answers. One that is full is well: it can
    /// be read, and made smaller.
    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        self.0.store.inner().health().boxed()
    }

    fn sample(&self) -> BoxFuture<'_, ()> {
        self.0.pictures.sample(&self.0, Instant::now());
        ready(()).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        ready(Ok(self.0.section())).boxed()
    }
}

impl Sources {
    fn section(&self) -> Section {
        let stats = &self.stats;
        let pictures = self.pictures.drawn();
        let mut section = Section { title: "store".to_owned(), pictures, ..Section::default() };
        section.row("store", self.store.inner().name());
        section.row("listening on", self.addresses.join(", "));
        section.row("up for", up_for(self.started.elapsed().as_secs()));
        section.row("connections", grouped(stats.connections.get()));
        section.row("requests in flight", grouped(stats.in_flight.get()));
        for (operation, kind) in Operation::ALL {
            let counts = RequestOutcome::ALL
                .map(|(ending, name)| format!("{} {name}", grouped(self.requests.get(operation, ending))));
            section.row(kind.replace('_', " "), counts.join(", "));
        }
        let PaceTotals { attempts, failures, waited, tracked, waiting, .. } = self.store.totals();
        let races = format!("{} of {} conditional writes", grouped(failures), grouped(attempts));
        section.row("lost races", races);
        let turns = format!("{tracked} regions in turns, {waiting} requests waiting, {waited} waited so far");
        section.row("pacing", turns);
        if let Some(info) = self.store.inner().numbers() {
            section.row("full", if self.fullness.look(&info) { "yes" } else { "no" });
            for (name, value) in info.as_object().into_iter().flatten() {
                if let Some(value) = shown(name, value) {
                    section.row(name.replace('_', " "), value);
                }
            }
        }
        section
    }
}

/// Returns a number of the engine's report as `nacre info` shows it; `None` for lists, such as that of the segments, which may
/// be thousands.
fn shown(name: &str, value: &Value) -> Option<String> {
    Some(match value {
        Value::Array(_) | Value::Object(_) => return None,
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) if name.ends_with("_bytes") && bytes >= 1024 => {
                format!("{} ({})", grouped(bytes), size(bytes))
            }
            (Some(count), _) => grouped(count),
            (None, Some(ratio)) => format!("{ratio:.2}"),
            (None, None) => number.to_string(),
        },
    })
}

/// Returns the time for which something has been up, in the units that matter.
pub(crate) fn up_for(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{} d {hours} h", grouped(days)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_of_the_engine_can_be_read() {
        for (name, value, text) in [
            ("taken_bytes", json!(109_951_162_777_600_u64), Some("109,951,162,777,600 (100.0 TiB)")),
            ("objects", json!(u64::MAX), Some("18,446,744,073,709,551,615")),
            ("write_amplification", json!(1.23456), Some("1.23")),
            ("read_only", json!(null), Some("-")),
            ("persistent", json!(true), Some("yes")),
            ("durability", json!("always"), Some("always")),
            ("segment_list", json!([{ "file": "segment-0000000001" }]), None),
        ] {
            assert_eq!(shown(name, &value).as_deref(), text, "{name}");
        }
    }

    #[test]
    fn times_up_have_the_units_that_matter() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3600, "1 h 0 min"),
            (86_400 * 400 + 7200, "400 d 2 h"),
        ] {
            assert_eq!(up_for(seconds), text);
        }
    }
}
