//! What things cost in the simulation of time. All of it is parameters; nothing here knows about algorithms.
//!
//! The defaults describe the machine of the paper (section V), as far as it can be known. The paper gives its size and says
//! what was walked, and no rates: where nothing is cited below, a number is an assumption of the right order, and what depends on
//! it should be looked at for other values too.

/// The network: the paper's `C(n) = α + nβ` for a message of `n` bytes (section III-C), with a smaller α between ranks of one
/// node (section IV-C, figure 2). Each rank has one port: its messages, sent or received, go through that one after the other, and
/// occupy it for `handling_ns + nβ`, and for `unit_ns` with each unit of work in them. That is what makes a master the bottleneck
/// once there are enough workers.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Network {
    /// α between nodes, in nanoseconds: on the way, beside what the ends do.
    pub alpha_remote_ns: u64,
    /// α within a node.
    pub alpha_local_ns: u64,
    /// β: picoseconds for each byte.
    pub beta_ps: u64,
    /// For how long a message occupies each end, whatever its size: the MPI library's work and the program's.
    pub handling_ns: u64,
    /// What each unit of work in a message costs each end: a path to copy, an allocation, a queue to change.
    pub unit_ns: u64,
}

impl Default for Network {
    /// Cielo: a Cray XE6. Its Gemini network takes 0.7 to 1.4 µs for a message (EuroBen's overview of machines, 2010) and a
    /// little more across a large torus: 1.5 µs; 6 GB/s were measured (ibid.): 5 GB/s. Within a node: 0.5 µs. A message is
    /// assumed to cost either end 2 µs on a core of 2.4 GHz, to probe for messages from anybody, match, receive, decide
    /// and answer, and each unit in it 0.5 µs.
    fn default() -> Self {
        Self { alpha_remote_ns: 1_500, alpha_local_ns: 500, beta_ps: 200, handling_ns: 2_000, unit_ns: 500 }
    }
}

impl Network {
    /// For how long a message occupies the port of either end.
    pub fn port_ns(&self, bytes: u64, units: u64) -> u64 {
        self.handling_ns + bytes * self.beta_ps / 1_000 + units * self.unit_ns
    }

    /// α between two ranks.
    pub fn alpha_ns(&self, colocated: bool) -> u64 {
        if colocated { self.alpha_local_ns } else { self.alpha_remote_ns }
    }
}

/// The file system's metadata service, which all ranks share: one queue of limited rate, and a time on the way.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Metadata {
    /// `lstat` calls that it serves in a second, all its servers together.
    pub stats_per_second: f64,
    /// Pages of directories that it serves in a second.
    pub pages_per_second: f64,
    /// Entries in a page.
    pub page_entries: u64,
    /// What a call takes when nobody else calls, beside the service itself: system call, client, network.
    pub latency_ns: u64,
    /// The user's callback, for each entry.
    pub callback_ns: u64,
}

impl Default for Metadata {
    /// A large Panasas installation: 50 metadata managers (Welch et al., "Scalable performance of the Panasas parallel file
    /// system", FAST 2008, name that as the largest in production), each assumed to serve 6,400 `lstat` or 1,000 pages of 256
    /// entries in a second; 1 ms for a call from a compute node.
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
    /// The same service, this many times as fast.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            stats_per_second: self.stats_per_second * factor,
            pages_per_second: self.pages_per_second * factor,
            ..self
        }
    }
}

/// The metadata service at work. Calls are served in the order in which they come; those that a thread makes one after the other for
/// a slice of a directory are put into the queue together and spread over the time that they take at least.
#[derive(Clone, Debug)]
pub(super) struct Service {
    model: Metadata,
    stat_ps: u64,
    page_ps: u64,
    free_ps: u64,
    /// How long it was busy.
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

    /// When a thread that begins now has listed this many pages.
    pub fn pages(&mut self, now_ns: u64, pages: u64) -> u64 {
        self.serve(now_ns, pages, self.page_ps)
    }

    /// When a thread that begins now has called `lstat` this many times.
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
