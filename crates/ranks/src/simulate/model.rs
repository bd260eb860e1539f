//! The costs of operations in the simulation of time. All of them are parameters; nothing here knows about algorithms.
//!
//! The defaults describe the machine of the paper (section V), as far as it can be known. The paper gives its size and
//! the trees that were walked, and no rates: where nothing is cited below, a number is an assumption of the right order
//! of magnitude, and results that depend on it should be checked for other values too.

/// The network: the paper's `C(n) = α + nβ` for a message of `n` bytes (section III-C), with a smaller α between ranks of one
/// node (section IV-C, figure 2). Each rank has one port: its messages, sent or received, go through that one after the other, and
/// occupy it for `handling_ns + nβ`, and for `unit_ns` with each unit of work in them. That is what makes a master the bottleneck
/// once there are enough workers.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Network {
    /// The latency α between nodes, in nanoseconds, without the work at either end.
    pub alpha_remote_ns: u64,
    /// The latency α within a node, in nanoseconds.
    pub alpha_local_ns: u64,
    /// The cost β of each byte, in picoseconds.
    pub beta_ps: u64,
    /// The time that a message occupies each end, whatever its size, in nanoseconds: the MPI library's work and the
    /// program's.
    pub handling_ns: u64,
    /// The cost of each unit of work in a message at each end, in nanoseconds: a path to copy, an allocation, a queue
    /// to change.
    pub unit_ns: u64,
}

impl Default for Network {
    /// Returns the parameters of Cielo, a Cray XE6. Its Gemini network takes 0.7 to 1.4 µs for a message (EuroBen's
    /// overview of machines, 2010) and a little more across a large torus: 1.5 µs; 6 GB/s were measured (ibid.): 5
    /// GB/s. Within a node: 0.5 µs. A message is assumed to cost either end 2 µs on a core of 2.4 GHz, to probe for
    /// messages from any rank, match, receive, decide and answer, and each unit in it 0.5 µs.
    fn default() -> Self {
        Self { alpha_remote_ns: 1_500, alpha_local_ns: 500, beta_ps: 200, handling_ns: 2_000, unit_ns: 500 }
    }
}

impl Network {
    /// Returns the time that a message occupies the port of either end, in nanoseconds.
    pub fn port_ns(&self, bytes: u64, units: u64) -> u64 {
        self.handling_ns + bytes * self.beta_ps / 1_000 + units * self.unit_ns
    }

    /// Returns the latency α between two ranks, in nanoseconds.
    pub fn alpha_ns(&self, colocated: bool) -> u64 {
        if colocated { self.alpha_local_ns } else { self.alpha_remote_ns }
    }
}

/// The file system's metadata service, which all ranks share: one queue of limited rate, and a latency.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Metadata {
    /// The number of `lstat` calls served per second, by all its servers together.
    pub stats_per_second: f64,
    /// The number of directory pages served per second.
    pub pages_per_second: f64,
    /// The number of entries in a page.
    pub page_entries: u64,
    /// The latency of a call on an idle service, in nanoseconds, beside the service itself: system call, client,
    /// network.
    pub latency_ns: u64,
    /// The time of the user's callback for each entry, in nanoseconds.
    pub callback_ns: u64,
}

impl Default for Metadata {
    /// Returns the parameters of a large Panasas installation: 50 metadata managers (Welch et al., "Scalable
    /// performance of the Panasas parallel file system", FAST 2008, name that as the largest in production), each
    /// assumed to serve 6,400 `lstat` or 1,000 pages of 256 entries per second; 1 ms for a call from a compute node.
    fn default() -> Self {
        Self {
            stats_per_second: 320_000.0,
            pages_per_second: 50_000.0,
            page_entries: 256,
            latency_ns: 1_000_000,
            callback_ns: 1_000,
        }
    }
}

impl Metadata {
    /// Returns a service with the rates multiplied by `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            stats_per_second: self.stats_per_second * factor,
            pages_per_second: self.pages_per_second * factor,
            ..self
        }
    }
}

/// The state of the metadata service. Calls are served in the order in which they come; those that a thread makes one
/// after the other for a slice of a directory are queued together and spread over the minimum time that they take.
#[derive(Clone, Debug)]
pub(super) struct Service {
    model: Metadata,
    stat_ps: u64,
    page_ps: u64,
    free_ps: u64,
    /// The time that it was busy, in picoseconds.
    pub busy_ps: u64,
}

impl Service {
    pub fn new(model: Metadata) -> Self {
        let period_ps = |rate: f64| (1e12 / rate.max(1e-3)) as u64;
        Self {
            model,
            stat_ps: period_ps(model.stats_per_second),
            page_ps: period_ps(model.pages_per_second),
            free_ps: 0,
            busy_ps: 0,
        }
    }

    /// Returns the time at which a thread that begins now has listed `pages` pages.
    pub fn pages(&mut self, now_ns: u64, pages: u64) -> u64 {
        self.serve(now_ns, pages, self.page_ps)
    }

    /// Returns the time at which a thread that begins now has made `stats` calls of `lstat`.
    pub fn stats(&mut self, now_ns: u64, stats: u64) -> u64 {
        self.serve(now_ns, stats, self.stat_ps)
    }

    fn serve(&mut self, now_ns: u64, calls: u64, each_ps: u64) -> u64 {
        if calls == 0 {
            return now_ns;
        }
        let service_ps = calls * each_ps;
        self.busy_ps += service_ps;
        self.free_ps = self.free_ps.max(now_ns * 1_000) + service_ps;
        let alone_ns = now_ns + calls * self.model.latency_ns + service_ps / 1_000;
        alone_ns.max(self.free_ps / 1_000 + self.model.latency_ns)
    }
}
