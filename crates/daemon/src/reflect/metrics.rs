//! The reflector's metrics, in the text format of Prometheus (OpenMetrics), made from a [`Report`] when they are asked
//! for.

use std::collections::BTreeMap;
use std::fmt;

use nacre_status::{Collector, DescriptorEncoder, Encoder};

use super::report::{GroupReport, Report};

/// The greatest number of groups with metrics of their own. If there are more, the busiest are shown; the totals hold
/// all.
pub(super) const GROUPS_MAX: usize = 1000;

/// The report that the metrics are made from.
#[derive(Debug)]
pub(super) struct Source(pub(super) Report);

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = Encoder::new(encoder);
        let about = &self.0.reflector;
        encoder.gauge("uptime_seconds", "Time since the start", about.up_seconds as f64)?;
        encoder.gauges("plane", "How copies are made", [([("plane", about.plane.as_str())], 1.0)])?;
        encoder.gauge("groups", "Groups that exist", about.groups as f64)?;
        encoder.gauge("members", "Members of all groups", about.members as f64)?;
        encoder.counter("datagrams_admitted", "Datagrams admitted to be copied", about.admitted)?;
        encoder.counter("payload_bytes_admitted", "Bytes of payload in them", about.admitted_bytes)?;
        encoder.counter("copies", "Copies that devices took", about.copies)?;
        let help = "Copies that can never be sent: no route, or too long for the path";
        encoder.counter("copies_undeliverable", help, about.undeliverable)?;
        let help = "Copies that were dropped, because their devices had no space within the age limit";
        encoder.counter("copies_too_old", help, about.too_old)?;
        let help = "Copies that devices took, by who made them: programs in the driver, or at the hook, or user space";
        encoder.counters("copies_made", help, labelled("by", &about.made))?;
        let help = "Datagrams that were refused whole, by reason";
        encoder.counters("datagrams_refused", help, labelled("reason", &about.refused))?;
        let help = "Other events of the data plane";
        encoder.counters("data_plane_events", help, labelled("event", &about.plane_counters))?;
        let help = "Events of the control plane";
        encoder.counters("control_plane_events", help, labelled("event", &about.control))?;

        let mut groups: Vec<&GroupReport> = self.0.groups.iter().collect();
        if groups.len() > GROUPS_MAX {
            groups.sort_by_key(|group| std::cmp::Reverse((group.copies_per_second, group.members)));
            groups.truncate(GROUPS_MAX);
        }
        encoder.gauges(
            "group_members",
            "Members of a group",
            groups.iter().map(|group| (name(group), group.members.into())),
        )?;
        let help = "Datagrams admitted, by group";
        encoder.counters(
            "group_datagrams_admitted",
            help,
            groups.iter().map(|group| (name(group), group.admitted)),
        )?;
        let help = "Copies that devices took, by group";
        encoder.counters("group_copies", help, groups.iter().map(|group| (name(group), group.copies)))?;
        let help = "Copies that were dropped as too old, by group";
        encoder.counters(
            "group_copies_too_old",
            help,
            groups.iter().map(|group| (name(group), group.too_old)),
        )?;
        let help = "Datagrams that were refused, by group";
        let refused = groups.iter().map(|group| (name(group), group.refused.values().sum()));
        encoder.counters("group_datagrams_refused", help, refused)?;
        let help = "The median delay to the members of a group, there and back";
        let known = groups.iter().filter_map(|group| Some((name(group), f64::from(group.delay_us?) / 1e6)));
        encoder.gauges("group_delay_seconds", help, known)?;
        let help = "The version of a group's state";
        let known = groups.iter().filter_map(|group| Some((name(group), group.state_version? as f64)));
        encoder.gauges("group_state_version", help, known)
    }
}

/// Returns counts by name, as values of a label.
fn labelled<'a>(
    label: &'a str,
    counts: &'a BTreeMap<&'static str, u64>,
) -> impl Iterator<Item = ([(&'a str, &'a str); 1], u64)> {
    counts.iter().map(move |(name, count)| ([(label, *name)], *count))
}

/// Returns the label with a group's name.
fn name(group: &GroupReport) -> [(&str, &str); 1] {
    [("group", &group.group)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let mut report = Report::default();
        report.reflector.copies = 7;
        report.reflector.refused.insert("non_members", 3);
        report.reflector.made.insert("driver", 7);
        report.groups.push(GroupReport {
            group: "7400/5".to_owned(),
            members: 2,
            copies: 7,
            ..Default::default()
        });
        let metrics = nacre_status::Metrics { prefix: "nacre_reflect", source: Box::new(Source(report)) };
        let text = nacre_status::Metrics::text([metrics]).unwrap();
        for line in [
            "nacre_reflect_copies_total 7",
            "nacre_reflect_copies_made_total{by=\"driver\"} 7",
            "nacre_reflect_datagrams_refused_total{reason=\"non_members\"} 3",
            "nacre_reflect_group_members{group=\"7400/5\"} 2.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
