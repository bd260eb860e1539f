//! The reflector's metrics, in the text format of Prometheus (OpenMetrics), made from a [`Report`] when they are asked
//! for.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::report::{GroupReport, Report};

/// Groups with metrics of their own. Where there are more, those of the busiest are shown; the totals hold all.
pub(super) const GROUPS_MAX: usize = 1000;

/// All metrics, as text.
pub(super) fn text(report: &Report) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("nacre_reflect");
    registry.register_collector(Box::new(Source(report.clone())));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Source(Report);

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = Encoder(encoder);
        let about = &self.0.reflector;
        encoder.gauge("uptime_seconds", "Time since the start", about.up_seconds)?;
        encoder.labelled("plane", "How copies are made", "plane", &about.plane, 1)?;
        encoder.gauge("groups", "Groups that exist", about.groups)?;
        encoder.gauge("members", "Members of all groups", about.members)?;
        encoder.counter("datagrams_admitted", "Datagrams admitted to be copied", about.admitted)?;
        encoder.counter("payload_bytes_admitted", "Bytes of payload in them", about.admitted_bytes)?;
        encoder.counter("copies", "Copies that devices took", about.copies)?;
        let help = "Copies that can never be sent: no route, or too long for the path";
        encoder.counter("copies_undeliverable", help, about.undeliverable)?;
        let help = "Datagrams that were refused whole, by reason";
        encoder.family("datagrams_refused", help, "reason", &about.refused)?;
        let help = "What else the data plane counts";
        encoder.family("data_plane_events", help, "event", &about.plane_counters)?;
        let help = "What the control plane counts";
        encoder.family("control_plane_events", help, "event", &about.control)?;

        let mut groups: Vec<&GroupReport> = self.0.groups.iter().collect();
        if groups.len() > GROUPS_MAX {
            groups.sort_by_key(|group| std::cmp::Reverse((group.copies_per_second, group.members)));
            groups.truncate(GROUPS_MAX);
        }
        encoder.groups("group_members", "Members of a group", MetricType::Gauge, &groups, |group| {
            Some(f64::from(group.members))
        })?;
        let help = "Datagrams admitted, by group";
        encoder.groups("group_datagrams_admitted", help, MetricType::Counter, &groups, |group| {
            Some(group.admitted as f64)
        })?;
        let help = "Copies that devices took, by group";
        encoder
            .groups("group_copies", help, MetricType::Counter, &groups, |group| Some(group.copies as f64))?;
        let help = "Datagrams that were refused, by group";
        encoder.groups("group_datagrams_refused", help, MetricType::Counter, &groups, |group| {
            Some(group.refused.values().sum::<u64>() as f64)
        })?;
        let help = "The median delay to the members of a group, there and back";
        encoder.groups("group_delay_seconds", help, MetricType::Gauge, &groups, |group| {
            group.delay_us.map(|us| f64::from(us) / 1e6)
        })?;
        let help = "The version of a group's state";
        encoder.groups("group_state_version", help, MetricType::Gauge, &groups, |group| {
            group.state_version.map(|version| version as f64)
        })
    }
}

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstGauge::new(value as f64).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn labelled(&mut self, name: &str, help: &str, label: &str, text: &str, value: u64) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value as f64).encode(family.encode_family(&[(label, text)])?)
    }

    fn family<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (what, count) in counts {
            ConstCounter::new(*count).encode(family.encode_family(&[(label, *what)])?)?;
        }
        Ok(())
    }

    fn groups(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        groups: &[&GroupReport],
        value: impl Fn(&GroupReport) -> Option<f64>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for group in groups {
            let Some(value) = value(group) else { continue };
            let labels = [("group", group.group.as_str())];
            let metric = family.encode_family(&labels)?;
            match kind {
                MetricType::Counter => ConstCounter::new(value).encode(metric)?,
                _ => ConstGauge::new(value).encode(metric)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let mut report = Report::default();
        report.reflector.copies = 7;
        report.reflector.refused.insert("strangers", 3);
        report.groups.push(GroupReport {
            group: "7400/5".to_owned(),
            members: 2,
            copies: 7,
            ..Default::default()
        });
        let text = text(&report).unwrap();
        for line in [
            "nacre_reflect_copies_total 7",
            "nacre_reflect_datagrams_refused_total{reason=\"strangers\"} 3",
            "nacre_reflect_group_members{group=\"7400/5\"} 2.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
