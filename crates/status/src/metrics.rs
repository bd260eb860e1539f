//! Metrics in the text formats of Prometheus, OpenMetrics and the older one, read from their sources on request.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4, which everybody reads who does not ask for another one.
    Plain,
}

impl Format {
    /// Returns the format that suits the `Accept` fields of a request: OpenMetrics only where it is named, and not as the
    /// second choice after plain text.
    pub(crate) fn wanted<'a>(accepts: impl Iterator<Item = &'a str>) -> Format {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accepts.flat_map(|field| field.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f64>);
            let best = match kind.to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" => &mut plain,
                _ => continue,
            };
            *best = quality.unwrap_or(0.0).max(*best);
        }
        if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Plain }
    }

    /// Returns the media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns a text of OpenMetrics in this format.
    pub(crate) fn convert(self, text: String) -> String {
        match self {
            Format::OpenMetrics => text,
            Format::Plain => plain(&text),
        }
    }
}

/// Rewrites OpenMetrics as the older text format: a counter is called there by its name with the suffix everywhere, and there
/// are neither units nor an end mark. The sources use no other kinds than counters, gauges and histograms.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    // The help of a family, which stands before its type.
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), Some(text)) => help = Some(text),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some(help) = help.take() {
                    plain.extend(["# HELP ", name, suffix, " ", help, "\n"]);
                }
                plain.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            (Some("#"), ..) => {}
            _ => plain.extend([line, "\n"]),
        }
    }
    plain
}

/// The metrics of a part.
#[derive(derive_more::Debug)]
pub struct Metrics {
    /// The common prefix of their names, without the underscore that follows.
    pub prefix: &'static str,
    /// Their source.
    #[debug(skip)]
    pub source: Box<dyn Collector>,
}

impl Metrics {
    /// Returns the metrics of all parts as one text.
    ///
    /// # Errors
    /// The error of a source that fails to encode.
    pub fn text(all: impl IntoIterator<Item = Metrics>) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        for metrics in all {
            registry.sub_registry_with_prefix(metrics.prefix).register_collector(metrics.source);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// An encoder of metrics with their names, their help and their values. Names of counters get the suffix `_total`.
#[derive(derive_more::Debug)]
#[debug("Encoder")]
pub struct Encoder<'a>(DescriptorEncoder<'a>);

impl<'a> Encoder<'a> {
    /// Creates an encoder on top of that of a [`Collector`].
    pub fn new(encoder: DescriptorEncoder<'a>) -> Encoder<'a> {
        Encoder(encoder)
    }

    /// Writes a counter, a number that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    /// Writes a counter of seconds.
    pub fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    /// Writes a gauge, a number that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// Writes a counter for each set of labels.
    pub fn counters<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); N], u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge for each set of labels.
    pub fn gauges<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); N], f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a histogram for each set of labels: the sum of all values, and for each bucket its upper bound and the number of
    /// values in it.
    pub fn histograms<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        histograms: impl IntoIterator<Item = ([(&'l str, &'l str); N], f64, Vec<(f64, u64)>)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, sum, buckets) in histograms {
            let count = buckets.iter().map(|(_, count)| count).sum();
            match N {
                0 => family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
                _ => family
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Source(u64);

    impl Collector for Source {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut encoder = Encoder::new(encoder);
            encoder.counter("copies", "Copies", self.0)?;
            encoder.gauge("members", "Members", 2.0)?;
            encoder.counters("refused", "Refused", [([("reason", "full")], 3)])?;
            let buckets = vec![(1.0, 2), (f64::INFINITY, 1)];
            encoder.histograms("time_seconds", "Time", [([("kind", "read")], 1.5, buckets)])
        }
    }

    #[test]
    fn parts_make_one_text_that_prometheus_reads() {
        let part = |prefix, count| Metrics { prefix, source: Box::new(Source(count)) };
        let text = Metrics::text([part("a", 7), part("b_c", 9)]).unwrap();
        for line in [
            "# HELP a_copies Copies",
            "a_copies_total 7",
            "a_members 2.0",
            "a_refused_total{reason=\"full\"} 3",
            "a_time_seconds_bucket{le=\"+Inf\",kind=\"read\"} 3",
            "b_c_copies_total 9",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn openmetrics_is_only_for_who_asks_for_it() {
        let wanted = |accept: &[&'static str]| Format::wanted(accept.iter().copied());
        for plain in [
            &[][..],
            &["*/*"],
            &["text/html,application/xhtml+xml,*/*;q=0.8"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;version=1.0.0;q=0.4, text/plain;q=0.5"],
            &["application/openmetrics-text;q=x"],
        ] {
            assert_eq!(wanted(plain), Format::Plain, "{plain:?}");
        }
        for open in [
            &["application/openmetrics-text"][..],
            &["application/OpenMetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"],
            &["text/plain;q=0.2", "application/openmetrics-text;q=0.3"],
        ] {
            assert_eq!(wanted(open), Format::OpenMetrics, "{open:?}");
        }
    }

    #[test]
    fn the_older_format_names_counters_as_their_values_are_named() {
        let metrics = Metrics { prefix: "a", source: Box::new(Source(7)) };
        let text = Format::Plain.convert(Metrics::text([metrics]).unwrap());
        assert!(
            text.starts_with(
                "# HELP a_copies_total Copies\n# TYPE a_copies_total counter\na_copies_total 7\n"
            )
        );
        assert!(text.contains("# HELP a_members Members\n# TYPE a_members gauge\na_members 2.0\n"), "{text}");
        assert!(text.contains("# TYPE a_time_seconds histogram\na_time_seconds_sum"), "{text}");
        assert!(!text.contains("# EOF"));
    }
}
