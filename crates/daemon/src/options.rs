//! What can be set of a server. The fields' names, with dashes, are those of the flags and of `nacre.toml`.

use std::path::PathBuf;
use std::time::Duration;

use nacre_logstore::Durability;
use nacre_object::pace::PaceOptions;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::socket::{self, SOCKET_MODE_DEFAULT};
use nacre_rpc::{Address, ServerLimits, SocketAccess};
use serde::{Deserialize, Serialize};

/// Where metrics are served by default.
pub const METRICS_ADDRESS_DEFAULT: &str = "127.0.0.1:6471";

/// How to run a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerOptions {
    /// The folder that holds the store; without one it is in memory, and gone when the server ends.
    pub data: Option<PathBuf>,
    /// Addresses to serve clients on: `unix:PATH`, or `HOST:PORT`, which needs `key` or `open`. None stands for the socket of
    /// the user that the server runs as: see [`nacre_rpc::socket::own_socket_for_server`].
    pub listen: Vec<String>,
    /// Mode of the Unix sockets, in octal digits. Only the server's own user and root are served on one that lets nobody
    /// else in.
    pub socket_mode: String,
    /// Group of the Unix sockets, by name or number, instead of that of the process.
    pub socket_group: Option<String>,
    /// Address of `/metrics`, `/healthz` and the status page; none for no such thing.
    pub metrics: Option<String>,
    /// Whether the server does without metrics where another one has their address already.
    pub metrics_if_free: bool,
    /// File with the cluster key; with one, every client must prove that it has the key too.
    pub key: Option<PathBuf>,
    /// Whether anybody may do anything who can reach an address `HOST:PORT`, for want of a key.
    pub open: bool,
    /// Addresses of all servers that keep the store together. None stands for the list that the store was started with
    /// before, or for a server that keeps a store by itself.
    pub members: Vec<String>,
    /// Which of `members` this server is; may be left out if it is one of `listen`.
    pub member: Option<String>,
    /// Version of the list of members; it must grow when the list is changed.
    pub members_version: u64,
    /// `always`, `none`, or an interval such as `50ms`: when acknowledged writes are on the medium.
    pub durability: String,
    /// Size of a segment of the log, in bytes; 0 for one that follows the capacity, or else the volume's size.
    pub segment_bytes: u32,
    /// The most that the store may take, in bytes: its log, what it keeps in reserve, and its snapshots. None for what the
    /// volume has.
    pub capacity: Option<u64>,
    /// Log that may gather before the index is written down again, in bytes.
    pub snapshot_bytes: u64,
    /// Whether updates of contended regions take turns.
    pub pacing: bool,
    /// Whether attempts and failures are counted for every region, to be asked for by clients.
    pub region_statistics: bool,
    /// Threads that serve clients; 0 for one per processor, and at most four.
    pub threads: usize,
    /// Connections that may be open.
    pub connections_max: usize,
    /// Bytes that all connections together may hold.
    pub held_bytes_max: usize,
    /// How long a peer may take to introduce itself, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// A peer that leaves a request half sent, or replies unread, for so long is disconnected; in milliseconds.
    pub stall_timeout_ms: u64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let log = nacre_logstore::Options::default();
        let limits = ServerLimits::default();
        Self {
            data: Some("nacre-data".into()),
            listen: Vec::new(),
            socket_mode: format!("{SOCKET_MODE_DEFAULT:04o}"),
            socket_group: None,
            metrics: Some(METRICS_ADDRESS_DEFAULT.to_owned()),
            metrics_if_free: false,
            key: None,
            open: false,
            members: Vec::new(),
            member: None,
            members_version: 1,
            durability: "always".to_owned(),
            segment_bytes: log.segment_bytes,
            capacity: log.capacity_bytes,
            snapshot_bytes: log.snapshot_bytes,
            pacing: true,
            region_statistics: false,
            threads: 0,
            connections_max: limits.connections_max,
            held_bytes_max: limits.held_bytes_max,
            handshake_timeout_ms: limits.handshake_timeout.as_millis() as u64,
            stall_timeout_ms: limits.stall_timeout.as_millis() as u64,
        }
    }
}

impl ServerOptions {
    pub(crate) fn log_options(&self) -> Result<nacre_logstore::Options, StoreError> {
        Ok(nacre_logstore::Options {
            durability: parse_durability(&self.durability)?,
            segment_bytes: self.segment_bytes,
            capacity_bytes: self.capacity,
            snapshot_bytes: self.snapshot_bytes,
            ..Default::default()
        })
    }

    /// The addresses to listen on.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, StoreError> {
        if self.listen.is_empty() {
            return Ok(vec![Address::Unix(socket::own_socket_for_server()?)]);
        }
        self.listen.iter().map(|text| text.parse()).collect()
    }

    /// Who may use the Unix sockets.
    pub(crate) fn socket_access(&self) -> Result<SocketAccess, StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
        let digits = self.socket_mode.bytes().all(|digit| digit.is_ascii_digit());
        let mode = u32::from_str_radix(&self.socket_mode, 8).ok().filter(|mode| digits && *mode <= 0o777);
        let mode = mode.ok_or_else(|| {
            invalid(format!("socket mode \"{}\" is not octal digits such as 0660", self.socket_mode))
        })?;
        let group = match &self.socket_group {
            None => None,
            Some(name) => Some(
                socket::group_number(name)
                    .ok_or_else(|| invalid(format!("socket group \"{name}\" is no group of this machine")))?,
            ),
        };
        Ok(SocketAccess { mode, group })
    }

    pub(crate) fn pace_options(&self) -> PaceOptions {
        PaceOptions { pacing: self.pacing, statistics: self.region_statistics, ..Default::default() }
    }

    pub(crate) fn limits(&self) -> ServerLimits {
        ServerLimits {
            connections_max: self.connections_max,
            held_bytes_max: self.held_bytes_max,
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms.max(1)),
            stall_timeout: Duration::from_millis(self.stall_timeout_ms.max(2)),
            ..Default::default()
        }
    }
}

fn parse_durability(text: &str) -> Result<Durability, StoreError> {
    let interval = |text: &str| {
        let (digits, factor) = match text.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None => (text.strip_suffix('s')?, 1000),
        };
        let count: u32 = digits.parse().ok().filter(|count| *count > 0)?;
        Some(Duration::from_millis(u64::from(count) * factor))
    };
    match text {
        "always" => Ok(Durability::Always),
        "none" => Ok(Durability::None),
        _ => interval(text).map(Durability::Interval).ok_or_else(|| {
            let text = format!("durability \"{text}\" is neither always nor none nor a time such as 50ms");
            StoreError::new(ErrorKind::Invalid, text)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_named_with_dashes_and_checked() {
        let options: ServerOptions =
            serde_json::from_str(r#"{"listen":["[::1]:7"],"segment-bytes":65536,"metrics":null}"#).unwrap();
        assert_eq!((options.segment_bytes, options.metrics, options.threads), (65536, None, 0));
        assert!(serde_json::from_str::<ServerOptions>(r#"{"colour":1}"#).is_err());
        assert_eq!(parse_durability("2s").unwrap(), Durability::Interval(Duration::from_secs(2)));
        assert_eq!(parse_durability("50ms").unwrap(), Durability::Interval(Duration::from_millis(50)));
        let access = |mode: &str, group: Option<&str>| {
            let (socket_mode, socket_group) = (mode.to_owned(), group.map(str::to_owned));
            ServerOptions { socket_mode, socket_group, ..Default::default() }.socket_access()
        };
        assert_eq!(access("0660", Some("0")).unwrap(), SocketAccess { mode: 0o660, group: Some(0) });
        assert_eq!(ServerOptions::default().socket_access().unwrap(), SocketAccess::default());
        for (mode, group) in
            [("", None), ("rw", None), ("+7", None), ("8", None), ("1777", None), ("600", Some("?"))]
        {
            assert!(access(mode, group).is_err(), "{mode} {group:?}");
        }
        for text in ["", "ms", "0ms", "-1s", "50", "sometimes"] {
            assert!(parse_durability(text).is_err(), "{text}");
        }
    }
}
