//! Metrics of the process, under the names that Prometheus's own clients use, and the version of the program.

use std::fmt;

use procfs::process::{LimitValue, Process};

use crate::metrics::{Encoder, Metrics};
use crate::{Collector, DescriptorEncoder};

/// Returns the metrics of this process.
pub(crate) fn metrics() -> [Metrics; 2] {
    [
        Metrics { prefix: "nacre", source: Box::new(Build) },
        Metrics { prefix: "process", source: Box::new(Resources) },
    ]
}

/// The processor time and the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Processor time used, in seconds.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
}

impl Usage {
    /// Returns the usage until now; `None` if the system does not tell it.
    pub fn now() -> Option<Usage> {
        let stat = Process::myself().ok()?.stat().ok()?;
        let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        Some(Usage { cpu_seconds, resident_bytes: stat.rss * procfs::page_size() })
    }
}

/// The version of the program.
#[derive(Debug)]
struct Build;

impl Collector for Build {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        Encoder::new(encoder).gauges(
            "build_info",
            "Always 1; the version of the program is its label",
            version,
        )
    }
}

/// The resources that the process uses.
#[derive(Debug)]
struct Resources;

impl Collector for Resources {
    /// Writes what the system tells. What it does not tell is left out.
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = Encoder::new(encoder);
        let Ok(process) = Process::myself() else { return Ok(()) };
        if let Ok(stat) = process.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            let cpu = (stat.utime + stat.stime) as f64 / ticks;
            encoder.seconds("cpu_seconds", "Processor time used", cpu)?;
            encoder.gauge("threads", "Threads", stat.num_threads as f64)?;
            encoder.gauge(
                "virtual_memory_bytes",
                "Size of the address space, in bytes",
                stat.vsize as f64,
            )?;
            let resident = (stat.rss * procfs::page_size()) as f64;
            encoder.gauge("resident_memory_bytes", "Memory in use, in bytes", resident)?;
            if let Ok(boot) = procfs::boot_time_secs() {
                let start = boot as f64 + stat.starttime as f64 / ticks;
                let help = "Time of the start, in seconds since 1970";
                encoder.gauge("start_time_seconds", help, start)?;
            }
        }
        if let Ok(count) = process.fd_count() {
            encoder.gauge("open_fds", "Open file descriptors", count as f64)?;
        }
        if let Ok(limits) = process.limits()
            && let LimitValue::Value(limit) = limits.max_open_files.soft_limit
        {
            encoder.gauge("max_fds", "File descriptors that may be open", limit as f64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_and_its_version_are_told() {
        let text = Metrics::text(metrics()).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
                .rsplit(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        assert!(text.contains(concat!("nacre_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")));
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        assert!(value("process_threads") >= 1.0);
        let age = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((-2.0..3600.0).contains(&(age - value("process_start_time_seconds"))));
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
