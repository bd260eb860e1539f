//! What all studies share: peers and processes, the order of measurements, results as JSON, tables and figures, and goals.

pub(crate) mod figure;
pub(crate) mod goal;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod quantity;
pub(crate) mod server;
pub(crate) mod statistic;
pub(crate) mod table;

pub(crate) use statistic::Spread;
