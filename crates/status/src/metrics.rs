//! Metrics in the text format of Prometheus (OpenMetrics), read from their sources on request.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The media type of the text.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a part.
#[derive(derive_more::Debug)]
#[debug("Metrics")]
pub struct Metrics {
    /// The common prefix of their names, without the underscore that follows.
    pub prefix: &'static str,
    /// Their source.
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
}
