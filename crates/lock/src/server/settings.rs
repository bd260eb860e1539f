//! The settings and limits of a lock server.

use std::time::Duration;

use crate::Stripe;
use crate::table::Indexing;

/// The settings of a lock server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The epoch: a number that grows with each start of the server, kept durably by its owner.
    pub epoch: u64,
    /// The bytes of every file that are this server's.
    pub stripe: Stripe,
    /// The way in which tables index what is held.
    pub indexing: Indexing,
    /// The time after its last renewal at which a session lapses.
    pub lease: Duration,
    /// The time after a restart in which sessions assert their locks before new ones are granted. At least the lease.
    pub grace: Duration,
    /// The limits.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            epoch: 1,
            stripe: Stripe { bytes: 64 << 10, servers: 1, server: 0 },
            indexing: Indexing::Described,
            lease: Duration::from_secs(10),
            grace: Duration::from_secs(12),
            limits: Limits::default(),
        }
    }
}

/// The limits that bound the memory of a lock server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The maximum number of sessions.
    pub sessions_max: usize,
    /// The maximum number of files with locks.
    pub files_max: usize,
    /// The maximum length of a file's name in bytes.
    pub name_bytes_max: usize,
    /// The maximum number of requests of all sessions.
    pub requests_max: usize,
    /// The maximum number of requests of one session.
    pub requests_per_session_max: usize,
    /// The maximum memory of the patterns of all sessions, in bytes.
    pub pattern_bytes_max: usize,
    /// The maximum memory of the patterns of one session, in bytes.
    pub pattern_bytes_per_session_max: usize,
    /// The maximum number of regions of a pattern in an unrolled table.
    pub regions_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 65_536,
            files_max: 1 << 20,
            name_bytes_max: 4096,
            requests_max: 4 << 20,
            requests_per_session_max: 1 << 18,
            pattern_bytes_max: 1 << 30,
            pattern_bytes_per_session_max: 256 << 20,
            regions_max: 1 << 20,
        }
    }
}
